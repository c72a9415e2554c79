// Protects the records of one direction of a link with AES-256-GCM (NIST SP 800-38D). The key has
// no other use, and the record's running number is the nonce.
//
// A record has covered bytes, which travel in the clear, then encrypted bytes, and a tag over both.
// If a record was altered, repeated, left out or moved, it does not open, and no later record
// opens. One thread at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "transport/crypto_library.h"

namespace hvd {

inline constexpr std::size_t kKeyBytes = 32;
inline constexpr std::size_t kTagBytes = 16;
using Key = std::array<std::byte, kKeyBytes>;
using Tag = std::array<std::byte, kTagBytes>;

namespace detail {

struct FreeContext {
  std::shared_ptr<const CryptoLibrary> library;
  void operator()(crypto::Context* context) const { library->functions().free_context(context); }
};
using ContextPtr = std::unique_ptr<crypto::Context, FreeContext>;

// The state of one direction at one end: the key's context, and the number of the next record.
class RecordCipher {
 public:
  void begin();
  void cover(const std::byte* from, std::size_t size_bytes) {
    transform(from, nullptr, size_bytes);
  }

 protected:
  // The library's functions for a direction. `what`: what they do, for errors.
  struct Direction {
    CryptoFunctions::Init CryptoFunctions::* init;
    CryptoFunctions::Update CryptoFunctions::* update;
    const char* what;
  };

  RecordCipher(const Direction& direction, std::shared_ptr<const CryptoLibrary> library,
               std::span<const std::byte, kKeyBytes> key, std::uint64_t first_number);
  void transform(const std::byte* from, std::byte* to, std::size_t size_bytes);
  const CryptoFunctions& functions() const { return context_.get_deleter().library->functions(); }

  const Direction direction_;
  ContextPtr context_;

 private:
  std::uint64_t number_;
};

}  // namespace detail

// Seals records, one after the other: begin, cover, encrypt, end. Throws Error where the library
// fails, or the numbers are used up.
class Sealer : public detail::RecordCipher {
 public:
  // `first_number`: of the first record; the same at the other end.
  Sealer(std::shared_ptr<const CryptoLibrary> library, std::span<const std::byte, kKeyBytes> key,
         std::uint64_t first_number = 0);

  // `to` may be `from`.
  void encrypt(const std::byte* from, std::byte* to, std::size_t size_bytes) {
    transform(from, to, size_bytes);
  }
  void end(std::byte* tag);
};

// Opens the records of a Sealer with the same key, in the same order, in pieces of any size.
class Opener : public detail::RecordCipher {
 public:
  Opener(std::shared_ptr<const CryptoLibrary> library, std::span<const std::byte, kKeyBytes> key,
         std::uint64_t first_number = 0);

  // The decrypted bytes must not be used before end() has returned true.
  void decrypt(const std::byte* from, std::byte* to, std::size_t size_bytes) {
    transform(from, to, size_bytes);
  }
  // Whether the record is unchanged.
  bool end(const std::byte* tag);
};

// Both directions of one link, as one end has them.
struct LinkSeals {
  LinkSeals(const std::shared_ptr<const CryptoLibrary>& library,
            std::span<const std::byte, kKeyBytes> send_key,
            std::span<const std::byte, kKeyBytes> receive_key, bool is_encrypting)
      : sealer(library, send_key), opener(library, receive_key), is_encrypting(is_encrypting) {}

  Sealer sealer;
  Opener opener;
  const bool is_encrypting;  // else tensors travel in the clear, covered
};

// Why a link ends when a record does not open.
std::string altered_text(std::string_view link);

// Seconds to seal and open a record of `size_bytes` in memory, which is the least cost for a link.
// The mean of `count` records.
double time_record(const std::shared_ptr<const CryptoLibrary>& library, std::size_t size_bytes,
                   bool is_encrypting, int count);

}  // namespace hvd
