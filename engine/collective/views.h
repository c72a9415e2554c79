// Scatter-gather: several tensors seen as one stream of bytes, read and written in place.
//
// Every view starts at a multiple of kViewAlignment in the stream. So a cut at such a multiple
// falls between elements, for every dtype. The gaps are never read or written.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

#include "core/link_format.h"
#include "core/rounding.h"
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
  LinkFormat format = LinkFormat::kExact;
  float* errors = nullptr;  // where the errors of a low-bit format go; null: nowhere
  Rounding rounding = {};   // to its codes
};

// A part of a stream.
struct Range {
  std::size_t begin;
  std::size_t end;
};

// Null stays null.
template <typename Byte>
Byte* at_offset(Byte* base, std::size_t offset) {
  return base == nullptr ? nullptr : base + offset;
}

// A part of one view.
struct Piece {
  const View& view;
  std::size_t at;      // offset in the view
  std::size_t stream;  // offset in the stream
  std::size_t size_bytes;

  const std::byte* in() const { return at_offset(view.in, at); }
  std::byte* out() const { return at_offset(view.out, at); }
  float* errors() const {
    return view.errors == nullptr ? nullptr : view.errors + at / size_of(view.spec.dtype);
  }
  std::size_t element_count() const { return size_bytes / size_of(view.spec.dtype); }
  bool is_low_bit() const { return hvd::is_low_bit(view.format); }
  std::size_t link_bytes() const {
    return is_low_bit() ? low_bit_bytes(view.format, element_count()) : size_bytes;
  }
  // Writes this rank's bytes, or zeros if it gives none.
  void copy_to(std::byte* to) const {
    if (view.in == nullptr) {
      std::memset(to, 0, size_bytes);
    } else {
      std::memcpy(to, in(), size_bytes);
    }
  }
};

class ViewList {
 public:
  void clear() {
    views_.clear();
    size_bytes_ = 0;
    has_zeros_ = false;
    has_low_bits_ = false;
  }

  // `alignment`: of the view's place in the stream, a multiple of kViewAlignment.
  void append(View view, std::size_t alignment = kViewAlignment) {
    view.begin = (size_bytes_ + alignment - 1) / alignment * alignment;
    has_zeros_ |= view.in == nullptr && view.size_bytes != 0;
    has_low_bits_ |= is_low_bit(view.format);
    const std::size_t end = view.begin + view.size_bytes;
    size_bytes_ = (end + kViewAlignment - 1) / kViewAlignment * kViewAlignment;
    views_.push_back(view);
  }

  // Length of the stream; a multiple of kViewAlignment.
  std::size_t size_bytes() const { return size_bytes_; }
  const std::vector<View>& views() const { return views_; }
  // Whether some view gives zeros.
  bool has_zeros() const { return has_zeros_; }
  // Whether some view travels in a low-bit format.
  bool has_low_bits() const { return has_low_bits_; }

  // Calls use(piece) for each piece of a view that lies in `range`, in order.
  template <typename Use>
  void for_each_piece(Range range, Use&& use) const {
    for (auto view = first_from(range.begin); view != views_.end() && view->begin < range.end;
         ++view) {
      const std::size_t from = std::max(range.begin, view->begin);
      const std::size_t to = std::min(range.end, view->begin + view->size_bytes);
      if (from < to) use(Piece{*view, from - view->begin, from, to - from});
    }
  }

  // Whether this rank wants any byte of `range`.
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
  bool has_low_bits_ = false;
};

inline void clear_errors(const Piece& piece) {
  if (piece.view.errors != nullptr) std::fill_n(piece.errors(), piece.element_count(), 0.0F);
}

// For views that travel exactly.
inline void clear_errors(const View& view) {
  clear_errors(Piece{view, 0, view.begin, view.size_bytes});
}

inline std::size_t longest_of(const std::vector<ViewList>& streams) {
  std::size_t bytes = 0;
  for (const ViewList& stream : streams) bytes = std::max(bytes, stream.size_bytes());
  return bytes;
}

// Copies the data from this rank to itself.
inline void copy_through(const ViewList& views, Range range) {
  views.for_each_piece(range, [](const Piece& piece) {
    if (piece.view.out == nullptr || piece.view.out == piece.view.in) return;
    std::memcpy(piece.out(), piece.in(), piece.size_bytes);
  });
}

// Copies this rank's bytes of `range` to `to`, zeros where it gives none. Gaps between views are
// not written.
inline void copy_in(const ViewList& views, Range range, std::byte* to) {
  views.for_each_piece(
      range, [&](const Piece& piece) { piece.copy_to(to + (piece.stream - range.begin)); });
}

// The counterpart: copies `range`, which begins at `from`, to the outputs of its views.
inline void copy_out(const ViewList& views, Range range, const std::byte* from) {
  views.for_each_piece(range, [&](const Piece& piece) {
    if (piece.view.out == nullptr) return;
    std::memcpy(piece.out(), from + (piece.stream - range.begin), piece.size_bytes);
  });
}

}  // namespace hvd
