// AES-256-GCM of OpenSSL's libcrypto, 1.1 or 3, which is found while the program runs. The engine
// is built and starts without it. Only connections between hosts need it.
//
// Types and numbers are those of evp.h, which both versions share. Any thread.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "core/shared_library.h"

namespace hvd {

namespace crypto {

using Cipher = struct CipherRecord;    // EVP_CIPHER
using Context = struct ContextRecord;  // EVP_CIPHER_CTX
inline constexpr int kGetTag = 0x10;
inline constexpr int kSetTag = 0x11;

}  // namespace crypto

struct CryptoFunctions {
  using Init = LibraryFunction<int, crypto::Context*, const crypto::Cipher*, void*, const void*,
                               const void*>;
  using Update = LibraryFunction<int, crypto::Context*, void*, int*, const void*, int>;
  using Final = LibraryFunction<int, crypto::Context*, void*, int*>;

  explicit CryptoFunctions(const SharedLibrary& library) : from(library) {}

  const SharedLibrary& from;
  LibraryFunction<const char*, int> version{from, "OpenSSL_version"};
  LibraryFunction<const crypto::Cipher*> aes_256_gcm{from, "EVP_aes_256_gcm"};
  LibraryFunction<crypto::Context*> new_context{from, "EVP_CIPHER_CTX_new"};
  LibraryFunction<void, crypto::Context*> free_context{from,
                                                       "EVP_CIPHER_CTX_free"};  // wipes the key
  LibraryFunction<int, crypto::Context*, int, int, void*> control{from, "EVP_CIPHER_CTX_ctrl"};
  Init encrypt_init{from, "EVP_EncryptInit_ex"};
  Update encrypt_update{from, "EVP_EncryptUpdate"};
  Final encrypt_final{from, "EVP_EncryptFinal_ex"};
  Init decrypt_init{from, "EVP_DecryptInit_ex"};
  Update decrypt_update{from, "EVP_DecryptUpdate"};
  Final decrypt_final{from, "EVP_DecryptFinal_ex"};
};

class CryptoLibrary {
 public:
  // `path`: a file, or a name that the system's loader finds. Throws Error(kSystem) where it
  // cannot be loaded, is too old or does not offer the cipher.
  explicit CryptoLibrary(const std::string& path, Loading loading = Loading::kIfNeeded)
      : library_(path, loading), functions_(library_) {}

  const CryptoFunctions& functions() const { return functions_; }
  const std::string& path() const { return library_.path(); }
  // The library's own text: "OpenSSL 3.0.19 27 Jan 2026".
  std::string version() const { return functions_.version(0); }

 private:
  const SharedLibrary library_;
  const CryptoFunctions functions_;
};

// The first of `candidates` that this process has already, else the first that can be loaded.
// Throws Error(kSystem) with what was wrong with each of them.
std::shared_ptr<const CryptoLibrary> find_crypto_library(std::span<const std::string> candidates);

}  // namespace hvd
