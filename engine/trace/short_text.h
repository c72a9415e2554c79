// A short text that is copied often.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace hvd {

// Copies the bytes behind the text, too: a few moves of wide registers, and no call.
template <std::size_t kBytes>
class ShortText {
  static_assert(kBytes < 256);

 public:
  constexpr ShortText() = default;
  // Cuts a text that is too long.
  constexpr explicit ShortText(std::string_view text)
      : size_(static_cast<std::uint8_t>(std::min(text.size(), kBytes))) {
    std::copy_n(text.data(), size_, text_);
  }

  std::size_t size() const { return size_; }
  // Writes kBytes from `to` on; returns where the text ends.
  char* put(char* to) const {
    std::memcpy(to, text_, kBytes);
    return to + size_;
  }

 private:
  char text_[kBytes] = {};
  std::uint8_t size_ = 0;
};

}  // namespace hvd
