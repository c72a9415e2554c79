#include "transport/seal.h"

#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "core/clock.h"
#include "core/error.h"

namespace hvd {

namespace {

// The nonce: 96 bits, of which the last 64 are the record's running number (SP 800-38D, 8.2.1).
using Nonce = std::array<std::byte, 12>;

Nonce next_nonce(std::uint64_t& number) {
  if (number == std::numeric_limits<std::uint64_t>::max()) {
    throw Error(ErrorCode::kSystem, "a link has used up the record numbers of its key");
  }
  Nonce nonce{};
  std::memcpy(nonce.data() + 4, &number, sizeof number);
  ++number;
  return nonce;
}

void check(int result, const char* what) {
  if (result != 1) throw Error(ErrorCode::kSystem, std::string("libcrypto failed to ") + what);
}

detail::ContextPtr make_context(std::shared_ptr<const CryptoLibrary> library) {
  crypto::Context* const context = library->functions().new_context();
  if (context == nullptr) throw Error(ErrorCode::kSystem, "libcrypto has no memory left");
  return {context, detail::FreeContext{std::move(library)}};
}

}  // namespace

detail::RecordCipher::RecordCipher(const Direction& direction,
                                   std::shared_ptr<const CryptoLibrary> library,
                                   std::span<const std::byte, kKeyBytes> key,
                                   std::uint64_t first_number)
    : direction_(direction), context_(make_context(std::move(library))), number_(first_number) {
  const CryptoFunctions& f = functions();
  check((f.*direction_.init)(context_.get(), f.aes_256_gcm(), nullptr, key.data(), nullptr),
        "set up AES-256-GCM");
}

void detail::RecordCipher::begin() {
  const Nonce nonce = next_nonce(number_);
  check((functions().*direction_.init)(context_.get(), nullptr, nullptr, nullptr, nonce.data()),
        "begin a record");
}

void detail::RecordCipher::transform(const std::byte* from, std::byte* to, std::size_t size_bytes) {
  int length = 0;
  check((functions().*direction_.update)(context_.get(), to, &length, from,
                                         static_cast<int>(size_bytes)),
        direction_.what);
}

Sealer::Sealer(std::shared_ptr<const CryptoLibrary> library,
               std::span<const std::byte, kKeyBytes> key, std::uint64_t first_number)
    : RecordCipher({.init = &CryptoFunctions::encrypt_init,
                    .update = &CryptoFunctions::encrypt_update,
                    .what = "seal a record"},
                   std::move(library), key, first_number) {}

void Sealer::end(std::byte* tag) {
  const CryptoFunctions& f = functions();
  int length = 0;
  check(f.encrypt_final(context_.get(), tag, &length), "end a record");
  check(f.control(context_.get(), crypto::kGetTag, static_cast<int>(kTagBytes), tag),
        "end a record");
}

Opener::Opener(std::shared_ptr<const CryptoLibrary> library,
               std::span<const std::byte, kKeyBytes> key, std::uint64_t first_number)
    : RecordCipher({.init = &CryptoFunctions::decrypt_init,
                    .update = &CryptoFunctions::decrypt_update,
                    .what = "open a record"},
                   std::move(library), key, first_number) {}

bool Opener::end(const std::byte* tag) {
  const CryptoFunctions& f = functions();
  Tag given{};
  std::memcpy(given.data(), tag, kTagBytes);
  check(f.control(context_.get(), crypto::kSetTag, static_cast<int>(kTagBytes), given.data()),
        direction_.what);
  int length = 0;
  return f.decrypt_final(context_.get(), given.data(), &length) == 1;
}

std::string altered_text(std::string_view link) {
  return "a record on the " + std::string(link) +
         " from it was altered, repeated or left out on its way";
}

double time_record(const std::shared_ptr<const CryptoLibrary>& library, std::size_t size_bytes,
                   bool is_encrypting, int count) {
  constexpr Key kKey{};
  LinkSeals seals(library, kKey, kKey, is_encrypting);
  std::vector<std::byte> record(size_bytes);
  Tag tag{};
  const std::int64_t begin_ns = now_ns();
  for (int i = 0; i < count; ++i) {
    seals.sealer.begin();
    seals.sealer.encrypt(record.data(), is_encrypting ? record.data() : nullptr, size_bytes);
    seals.sealer.end(tag.data());
    seals.opener.begin();
    seals.opener.decrypt(record.data(), is_encrypting ? record.data() : nullptr, size_bytes);
    if (!seals.opener.end(tag.data())) throw Error(ErrorCode::kInternal, "a record did not open");
  }
  return static_cast<double>(now_ns() - begin_ns) / 1e9 / count;
}

}  // namespace hvd
