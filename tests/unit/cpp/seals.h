// Seals for both ends of a link, with keys of their own; nothing secret.
#pragma once

#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "transport/seal.h"

namespace hvd::test {

inline std::shared_ptr<const CryptoLibrary> crypto_library() {
  static const auto library =
      find_crypto_library(std::vector<std::string>{"libcrypto.so.3", "libcrypto.so.1.1"});
  return library;
}

inline Key numbered_key(int number) {
  Key key{};
  std::memcpy(key.data(), &number, sizeof number);
  return key;
}

using SealsPair = std::pair<std::shared_ptr<LinkSeals>, std::shared_ptr<LinkSeals>>;

inline SealsPair seals_pair(bool is_encrypting = true) {
  static std::atomic<int> keys{0};
  const Key one = numbered_key(++keys);
  const Key other = numbered_key(++keys);
  return {std::make_shared<LinkSeals>(crypto_library(), one, other, is_encrypting),
          std::make_shared<LinkSeals>(crypto_library(), other, one, is_encrypting)};
}

}  // namespace hvd::test
