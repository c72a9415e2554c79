// Scatter-gather: several tensors seen as one stream of bytes, read and written in place.
//
// Every view starts at a multiple of kViewAlignment in the stream, so that any cut at such a
// multiple falls between elements whatever the dtype. The gaps are never read or written.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

#include "kernels/reduce.h"

namespace hvd {

inline constexpr std::size_t kViewAlignment = 64;

// A rank that takes part without data of its own is absent: it gives zeros and drops the result.
struct View {
  const std::byte* in = nullptr;  // this rank's contribution (null: zeros)
  std::byte* out = nullptr;       // where the result goes (null: nowhere); may equal `in`
  std::size_t size_bytes = 0;
  std::size_t begin = 0;  // offset in the stream
  ReduceSpec spec{};      // for reductions
};

// A part of a stream.
struct Range {
  std::size_t begin;
  std::size_t end;
};

class ViewList {
 public:
  void clear() {
    views_.clear();
    size_bytes_ = 0;
    has_zeros_ = false;
  }

  // `alignment`: of the view's place in the stream, a multiple of kViewAlignment.
  void append(View view, std::size_t alignment = kViewAlignment) {
    view.begin = (size_bytes_ + alignment - 1) / alignment * alignment;
    has_zeros_ |= view.in == nullptr && view.size_bytes != 0;
    const std::size_t end = view.begin + view.size_bytes;
    size_bytes_ = (end + kViewAlignment - 1) / kViewAlignment * kViewAlignment;
    views_.push_back(view);
  }

  // Length of the stream; a multiple of kViewAlignment.
  std::size_t size_bytes() const { return size_bytes_; }
  const std::vector<View>& views() const { return views_; }
  // Whether some view gives zeros.
  bool has_zeros() const { return has_zeros_; }

  // Calls use(view, offset in the view, offset in the stream, length) for each piece of a view that
  // lies in `range`, in order.
  template <typename Use>
  void for_each_piece(Range range, Use&& use) const {
    for (auto view = first_from(range.begin); view != views_.end() && view->begin < range.end;
         ++view) {
      const std::size_t from = std::max(range.begin, view->begin);
      const std::size_t to = std::min(range.end, view->begin + view->size_bytes);
      if (from < to) use(*view, from - view->begin, from, to - from);
    }
  }

  // Whether any byte of `range` has a place to go on this rank.
  bool has_out(Range range) const {
    for (auto view = first_from(range.begin); view != views_.end() && view->begin < range.end;
         ++view) {
      const bool is_inside = range.begin < view->begin + view->size_bytes;
      if (is_inside && view->size_bytes != 0 && view->out != nullptr) return true;
    }
    return false;
  }

 private:
  // The last view that begins at or before `at`: the first that can reach beyond it.
  std::vector<View>::const_iterator first_from(std::size_t at) const {
    const auto after = std::upper_bound(views_.begin(), views_.end(), at,
                                        [](std::size_t a, const View& v) { return a < v.begin; });
    return after == views_.begin() ? after : after - 1;
  }

  std::vector<View> views_;
  std::size_t size_bytes_ = 0;
  bool has_zeros_ = false;
};

// Copies this rank's bytes of `range` to `to`, where range.begin goes first; zeros where it gives
// none. Gaps between views are left as they are.
inline void copy_in(const ViewList& views, Range range, std::byte* to) {
  views.for_each_piece(
      range, [&](const View& view, std::size_t at, std::size_t stream, std::size_t length) {
        std::byte* const piece = to + (stream - range.begin);
        if (view.in == nullptr) {
          std::memset(piece, 0, length);
        } else {
          std::memcpy(piece, view.in + at, length);
        }
      });
}

// The counterpart: copies `range`, which begins at `from`, to where its views want it.
inline void copy_out(const ViewList& views, Range range, const std::byte* from) {
  views.for_each_piece(
      range, [&](const View& view, std::size_t at, std::size_t stream, std::size_t length) {
        if (view.out != nullptr) std::memcpy(view.out + at, from + (stream - range.begin), length);
      });
}

}  // namespace hvd
