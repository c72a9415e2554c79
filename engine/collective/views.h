// Scatter-gather: several tensors seen as one stream of bytes, read and written in place.
//
// Every view starts at a multiple of kViewAlignment in the stream, so that any cut at such a
// multiple falls between elements whatever the dtype. The gaps are never read or written.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "kernels/reduce.h"

namespace hvd {

inline constexpr std::size_t kViewAlignment = 64;

struct View {
  const std::byte* in = nullptr;  // this rank's contribution (null: none)
  std::byte* out = nullptr;       // where the result goes (null: nowhere); may equal `in`
  std::size_t size_bytes = 0;
  std::size_t begin = 0;  // offset in the stream
  ReduceSpec spec{};      // for reductions
};

class ViewList {
 public:
  void clear() {
    views_.clear();
    size_bytes_ = 0;
  }

  void append(View view) {
    view.begin = size_bytes_;
    const std::size_t end = size_bytes_ + view.size_bytes;
    size_bytes_ = (end + kViewAlignment - 1) / kViewAlignment * kViewAlignment;
    views_.push_back(view);
  }

  // Length of the stream; a multiple of kViewAlignment.
  std::size_t size_bytes() const { return size_bytes_; }
  const std::vector<View>& views() const { return views_; }

  // Calls use(view, offset in the view, offset in the stream, length) for each piece of a view that
  // lies in [begin, end) of the stream, in order.
  template <typename Use>
  void for_each_piece(std::size_t begin, std::size_t end, Use&& use) const {
    auto view = std::upper_bound(views_.begin(), views_.end(), begin,
                                 [](std::size_t at, const View& v) { return at < v.begin; });
    if (view != views_.begin()) --view;
    for (; view != views_.end() && view->begin < end; ++view) {
      const std::size_t from = std::max(begin, view->begin);
      const std::size_t to = std::min(end, view->begin + view->size_bytes);
      if (from < to) use(*view, from - view->begin, from, to - from);
    }
  }

 private:
  std::vector<View> views_;
  std::size_t size_bytes_ = 0;
};

}  // namespace hvd
