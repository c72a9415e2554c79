#include "bindings/seals_py.h"

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <vector>

namespace nb = nanobind;
using namespace nb::literals;

namespace hvd {

namespace {

struct LinkCipher {
  explicit LinkCipher(const std::vector<std::string>& candidates)
      : library(find_crypto_library(candidates)) {}
  std::shared_ptr<const CryptoLibrary> library;
};

std::span<const std::byte, kKeyBytes> key_in(const nb::bytes& key) {
  if (key.size() != kKeyBytes) throw nb::value_error("a key of 32 bytes");
  return std::span<const std::byte, kKeyBytes>(static_cast<const std::byte*>(key.data()),
                                               kKeyBytes);
}

HeldSeals make_seals(const LinkCipher& cipher, const nb::bytes& send_key,
                     const nb::bytes& receive_key, bool is_encrypting) {
  return {std::make_shared<LinkSeals>(cipher.library, key_in(send_key), key_in(receive_key),
                                      is_encrypting)};
}

}  // namespace

std::shared_ptr<LinkSeals> seals_of(const HeldSeals* held) {
  if (held == nullptr) throw nb::value_error("a link between leaders needs seals");
  return held->seals;
}

void bind_seals(nb::module_& module) {
  nb::class_<HeldSeals>(module, "LinkSeals",
                        "What seals one link between hosts, on its way to the engine.");
  nb::class_<LinkCipher>(module, "LinkCipher",
                         "AES-256-GCM of the first libcrypto of ``candidates`` that this process "
                         "has, or can load.")
      .def(nb::init<const std::vector<std::string>&>(), "candidates"_a)
      .def_prop_ro("path", [](const LinkCipher& cipher) { return cipher.library->path(); })
      .def_prop_ro("version", [](const LinkCipher& cipher) { return cipher.library->version(); })
      .def("seals", &make_seals, "send_key"_a, "receive_key"_a, "is_encrypting"_a)
      .def(
          "time_record",
          [](const LinkCipher& cipher, std::size_t size_bytes, bool is_encrypting, int count) {
            return time_record(cipher.library, size_bytes, is_encrypting, count);
          },
          "size_bytes"_a, "is_encrypting"_a, "count"_a, nb::call_guard<nb::gil_scoped_release>(),
          "Seconds to seal and open a record, in memory; the mean of ``count``.");
}

}  // namespace hvd
