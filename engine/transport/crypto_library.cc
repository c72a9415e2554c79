#include "transport/crypto_library.h"

#include <array>

#include "core/error.h"
#include "transport/seal.h"

namespace hvd {

CryptoLibrary::CryptoLibrary(const std::string& path, Loading loading) : library_(path, loading) {
  const auto find = [this](auto&... functions) {
    (library_.find(functions.name, functions.call), ...);
  };
  CryptoFunctions& f = functions_;
  find(f.version, f.aes_256_gcm, f.new_context, f.free_context, f.control, f.encrypt_init,
       f.encrypt_update, f.encrypt_final, f.decrypt_init, f.decrypt_update, f.decrypt_final);
}

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
