#include "transport/crypto_library.h"

#include "core/error.h"
#include "transport/seal.h"

namespace hvd {

std::shared_ptr<const CryptoLibrary> find_crypto_library(std::span<const std::string> candidates) {
  constexpr Key kNoKey{};
  std::string problems;
  for (const Loading loading : {Loading::kNever, Loading::kIfNeeded}) {
    problems.clear();
    for (const std::string& candidate : candidates) {
      try {
        auto library = std::make_shared<const CryptoLibrary>(candidate, loading);
        Sealer(library, kNoKey);  // a policy of the system may forbid the cipher
        return library;
      } catch (const Error& error) {
        problems += (problems.empty() ? "" : "; ") + std::string(error.what());
      }
    }
  }
  throw Error(ErrorCode::kSystem, problems);
}

}  // namespace hvd
