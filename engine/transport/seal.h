// What keeps the records of one direction of a link as they were sent: AES-256-GCM (NIST SP
// 800-38D) under a key that nothing else uses, with the record's running number as nonce.
//
// A record is bytes that are covered, which travel as they are, then bytes that are encrypted, and
// a tag over both. A record that was altered, repeated, left out or moved does not open, and no
// later record does. One thread at a time.
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

}  // namespace detail

// Seals records, one after the other: begin, cover, encrypt, end. Throws Error where the library
// fails, or the numbers are used up.
class Sealer {
 public:
  // `first_number`: of the records; the other end's must be the same.
  Sealer(std::shared_ptr<const CryptoLibrary> library, std::span<const std::byte, kKeyBytes> key,
         std::uint64_t first_number = 0);

  void begin();
  void cover(const std::byte* from, std::size_t size_bytes);
  // `to` may be `from`.
  void encrypt(const std::byte* from, std::byte* to, std::size_t size_bytes);
  void end(std::byte* tag);

 private:
  detail::ContextPtr context_;
  std::uint64_t number_;
};

// Opens what a Sealer with the same key sealed, in the same order and pieces of any size.
class Opener {
 public:
  Opener(std::shared_ptr<const CryptoLibrary> library, std::span<const std::byte, kKeyBytes> key,
         std::uint64_t first_number = 0);

  void begin();
  void cover(const std::byte* from, std::size_t size_bytes);
  // What it writes must not be used before end() has returned true.
  void decrypt(const std::byte* from, std::byte* to, std::size_t size_bytes);
  // Whether this is what was sealed.
  bool end(const std::byte* tag);

 private:
  detail::ContextPtr context_;
  std::uint64_t number_;
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

// Seconds to seal and open a record of `size_bytes` in memory, the least that it costs a link: the
// mean of `count`.
double time_record(const std::shared_ptr<const CryptoLibrary>& library, std::size_t size_bytes,
                   bool is_encrypting, int count);

}  // namespace hvd
