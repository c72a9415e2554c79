#include "runtime/values.h"

#include <algorithm>
#include <cstring>

namespace hvd {

namespace {

// How a floating-point number of this width is laid out: NaN and infinity have all exponent bits.
template <typename Bits>
struct Layout {
  Bits exponent;
  Bits fraction;
};

template <typename Bits>
Bits bits_at(std::span<const std::byte> bytes, std::size_t index) {
  Bits bits;
  std::memcpy(&bits, bytes.data() + index * sizeof bits, sizeof bits);
  return bits;
}

template <typename Bits>
std::optional<std::size_t> find(std::span<const std::byte> bytes, Layout<Bits> layout) {
  const std::size_t count = bytes.size() / sizeof(Bits);
  for (std::size_t index = 0; index < count; ++index) {
    if ((bits_at<Bits>(bytes, index) & layout.exponent) == layout.exponent) return index;
  }
  return std::nullopt;
}

template <typename Bits>
std::string name(std::span<const std::byte> bytes, Layout<Bits> layout, std::size_t index) {
  const Bits bits = bits_at<Bits>(bytes, index);
  if ((bits & layout.fraction) != 0) return "nan";
  return (bits & ~(layout.exponent | layout.fraction)) != 0 ? "-inf" : "inf";
}

// Calls `use` with the layout of a floating-point dtype; its default result for others.
auto with_layout(Dtype dtype, auto&& use) {
  switch (dtype) {
    case Dtype::kFloat16:
      return use(Layout<std::uint16_t>{0x7c00, 0x03ff});
    case Dtype::kBfloat16:
      return use(Layout<std::uint16_t>{0x7f80, 0x007f});
    case Dtype::kFloat32:
      return use(Layout<std::uint32_t>{0x7f800000, 0x007fffff});
    case Dtype::kFloat64:
      return use(Layout<std::uint64_t>{0x7ff0000000000000, 0x000fffffffffffff});
    default:
      return decltype(use(Layout<std::uint32_t>{})){};
  }
}

}  // namespace

std::optional<std::size_t> first_not_finite(std::span<const std::byte> bytes, Dtype dtype) {
  return with_layout(dtype, [&](auto layout) { return find(bytes, layout); });
}

std::string describe_element(std::span<const std::byte> bytes, Dtype dtype,
                             std::span<const std::int64_t> shape, std::size_t index) {
  std::string position;
  std::size_t rest = index;
  for (std::size_t dim = shape.size(); dim-- > 0;) {
    const auto length = static_cast<std::size_t>(shape[dim]);
    position = std::to_string(rest % length) + (position.empty() ? "" : ", ") + position;
    rest /= length;
  }
  return with_layout(dtype, [&](auto layout) { return name(bytes, layout, index); }) + " at [" +
         position + "]";
}

std::vector<int> outliers(std::span<const std::uint64_t> hashes) {
  const auto votes = [&](std::uint64_t hash) { return std::ranges::count(hashes, hash); };
  const auto usual = std::ranges::max_element(
      hashes, [&](std::uint64_t a, std::uint64_t b) { return votes(a) < votes(b); });
  std::vector<int> others;
  for (std::size_t rank = 0; rank < hashes.size(); ++rank) {
    if (hashes[rank] != *usual) others.push_back(static_cast<int>(rank));
  }
  return others;
}

}  // namespace hvd
