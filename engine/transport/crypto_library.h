// AES-256-GCM of OpenSSL's libcrypto, 1.1 or 3, found while the program runs: the engine is built
// and starts without it. Only connections between hosts need it.
//
// Types and numbers are those of evp.h, which both versions share. Any thread.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/shared_library.h"

namespace hvd {

namespace crypto {

using Cipher = struct CipherRecord;    // EVP_CIPHER
using Context = struct ContextRecord;  // EVP_CIPHER_CTX
inline constexpr int kGetTag = 0x10;
inline constexpr int kSetTag = 0x11;

}  // namespace crypto

template <typename Result, typename... Parameters>
struct CryptoFunction {
  const char* name;
  Result (*call)(Parameters...) = nullptr;
  Result operator()(Parameters... arguments) const { return call(arguments...); }
};

struct CryptoFunctions {
  using Init =
      CryptoFunction<int, crypto::Context*, const crypto::Cipher*, void*, const void*, const void*>;
  using Update = CryptoFunction<int, crypto::Context*, void*, int*, const void*, int>;
  using Final = CryptoFunction<int, crypto::Context*, void*, int*>;

  CryptoFunction<const char*, int> version{"OpenSSL_version"};
  CryptoFunction<const crypto::Cipher*> aes_256_gcm{"EVP_aes_256_gcm"};
  CryptoFunction<crypto::Context*> new_context{"EVP_CIPHER_CTX_new"};
  CryptoFunction<void, crypto::Context*> free_context{"EVP_CIPHER_CTX_free"};  // wipes the key
  CryptoFunction<int, crypto::Context*, int, int, void*> control{"EVP_CIPHER_CTX_ctrl"};
  Init encrypt_init{"EVP_EncryptInit_ex"};
  Update encrypt_update{"EVP_EncryptUpdate"};
  Final encrypt_final{"EVP_EncryptFinal_ex"};
  Init decrypt_init{"EVP_DecryptInit_ex"};
  Update decrypt_update{"EVP_DecryptUpdate"};
  Final decrypt_final{"EVP_DecryptFinal_ex"};
};

class CryptoLibrary {
 public:
  // `path`: a file, or a name that the system's loader finds. Throws Error(kSystem) where it
  // cannot be loaded, is too old or does not offer the cipher.
  explicit CryptoLibrary(const std::string& path, Loading loading = Loading::kIfNeeded);

  const CryptoFunctions& functions() const { return functions_; }
  const std::string& path() const { return library_.path(); }
  // As it names itself: "OpenSSL 3.0.19 27 Jan 2026".
  std::string version() const { return functions_.version(0); }

 private:
  const SharedLibrary library_;
  CryptoFunctions functions_;
};

// The first of `candidates` that this process has already, else the first that can be loaded.
// Throws Error(kSystem) with what was wrong with each of them.
std::shared_ptr<const CryptoLibrary> find_crypto_library(std::span<const std::string> candidates);

}  // namespace hvd
