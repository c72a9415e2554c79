// Checks of debug mode on the values of tensors. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/dtype.h"

namespace hvd {

// The first element that is NaN or infinite; none in integers.
std::optional<std::size_t> first_not_finite(std::span<const std::byte> bytes, Dtype dtype);

// "nan at [0, 17]": such an element of a tensor of this shape.
std::string describe_element(std::span<const std::byte> bytes, Dtype dtype,
                             std::span<const std::int64_t> shape, std::size_t index);

// Given a hash of each rank's result: the ranks that differ from the majority, or from the first
// rank where there is no majority. Positions in `hashes`; none if all are equal.
std::vector<int> outliers(std::span<const std::uint64_t> hashes);

}  // namespace hvd
