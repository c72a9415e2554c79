// Collectives as sequences of calls to a data plane. A data plane has no fusion, scaling or
// averages, and cannot reduce some dtypes and ops. All that is done here. Fusion uses a scratch
// memory of limited size.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "backend/data_plane.h"
#include "backend/work.h"
#include "collective/shares.h"
#include "collective/views.h"

namespace hvd {

// Contiguous memory between tensors and data plane, for one collective at a time.
struct Scratch {
  // How much of a stream one call moves.
  static constexpr std::size_t kWindowBytes = 16UL << 20;
  // The same if the data plane gets the tensor itself. It is small enough for an int.
  static constexpr std::size_t kDirectBytes = 256UL << 20;

  std::vector<std::byte> send;
  std::vector<std::byte> receive;

  std::byte* to_send(std::size_t size_bytes) { return at_least(send, size_bytes); }
  std::byte* to_receive(std::size_t size_bytes) { return at_least(receive, size_bytes); }
  // Frees the memory after an unusually large bucket.
  void shrink() {
    if (send.size() + receive.size() > 4 * kWindowBytes) *this = {};
  }

 private:
  static std::byte* at_least(std::vector<std::byte>& memory, std::size_t size_bytes) {
    if (memory.size() < size_bytes) memory.resize(size_bytes);
    return memory.data();
  }
};

class PlaneCollective {
 public:
  virtual ~PlaneCollective() = default;

  // Uses the result of the last call, if there was one, and starts the next. False when there is
  // nothing left to do.
  virtual bool next(DataPlane& plane) = 0;
};

// Walks through streams in windows. All ranks have the same number of windows.
class Windows {
 public:
  Windows(std::size_t longest_bytes, std::size_t window_bytes)
      : window_bytes_(window_bytes), count_(block_count(longest_bytes, window_bytes)) {}

  // False after the last one.
  bool advance() { return ++index_ < static_cast<std::int64_t>(count_); }
  bool is_before_first() const { return index_ < 0; }
  // This window of a stream of that length.
  Range of(std::size_t stream_bytes) const {
    return block_of(static_cast<std::uint64_t>(index_), window_bytes_, stream_bytes);
  }

 private:
  std::size_t window_bytes_;
  std::uint32_t count_;
  std::int64_t index_ = -1;
};

// Tensors that a data plane gets window by window.
class WindowedCollective : public PlaneCollective {
 protected:
  WindowedCollective(Place place, Scratch& scratch, std::size_t longest_bytes,
                     std::size_t window_bytes = Scratch::kWindowBytes)
      : place_(place), scratch_(scratch), windows_(longest_bytes, window_bytes) {}

  const Place place_;
  Scratch& scratch_;
  Windows windows_;
  std::vector<std::size_t> in_sizes_;
  std::vector<std::size_t> out_sizes_;
};

inline std::size_t length_of(Range range) { return range.end - range.begin; }

// The window of each stream of `size` ranks. Together they fit into a window of the scratch memory.
inline std::size_t part_of_window(std::size_t size) {
  return std::max(kViewAlignment, Scratch::kWindowBytes / size / kViewAlignment * kViewAlignment);
}

// A single tensor is given to the data plane itself.
inline std::size_t window_for(const ViewList& views) {
  return views.views().size() == 1 ? Scratch::kDirectBytes : Scratch::kWindowBytes;
}

// Copies a window of each stream to `to`, in rank order.
inline void copy_all_in(const std::vector<ViewList>& streams, const Windows& windows,
                        std::byte* to) {
  for (const ViewList& stream : streams) {
    const Range window = windows.of(stream.size_bytes());
    copy_in(stream, window, to);
    to += length_of(window);
  }
}

inline void copy_all_out(const std::vector<ViewList>& streams, const Windows& windows,
                         const std::byte* from) {
  for (const ViewList& stream : streams) {
    const Range window = windows.of(stream.size_bytes());
    copy_out(stream, window, from);
    from += length_of(window);
  }
}

// Stores the lengths of such windows and returns their sum.
inline std::size_t measure(const std::vector<ViewList>& streams, const Windows& windows,
                           std::vector<std::size_t>& sizes) {
  std::size_t total = 0;
  sizes.clear();
  for (const ViewList& stream : streams) {
    sizes.push_back(length_of(windows.of(stream.size_bytes())));
    total += sizes.back();
  }
  return total;
}

}  // namespace hvd
