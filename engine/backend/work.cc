#include "backend/work.h"

#include <algorithm>
#include <numeric>

#include "core/error.h"
#include "kernels/low_bit.h"

namespace hvd {

RowRange reducescatter_rows(std::int64_t dim0, int owner, int size) {
  const std::int64_t least = dim0 / size;
  const std::int64_t longer = dim0 % size;  // so many ranks get a row more
  return {.begin = owner * least + std::min<std::int64_t>(owner, longer),
          .count = least + (owner < longer ? 1 : 0)};
}

std::size_t split_bytes(const Work& work, int from, int to, int size) {
  return bytes_of_rows(*work.request, work.splits[static_cast<std::size_t>(from * size + to)]);
}

std::size_t given_bytes(const Work& work, Place place) {
  const Request& request = *work.request;
  const Collective& collective = collective_of(request.kind);
  if (collective.has_root && work.root != place.rank) return 0;
  if (collective.row_counts == RowCounts::kPerRank) {
    return bytes_of_rows(request, work.rows[static_cast<std::size_t>(place.rank)]);
  }
  if (!collective.has_splits()) return request.size_bytes();
  std::size_t bytes = 0;
  for (int to = 0; to < place.size; ++to) bytes += split_bytes(work, place.rank, to, place.size);
  return bytes;
}

std::int64_t result_rows(const Work& work, Place place) {
  switch (collective_of(work.request->kind).result) {
    case ResultShape::kAllRows:
      return std::accumulate(work.rows.begin(), work.rows.end(), std::int64_t{0});
    case ResultShape::kReceivedRows: {
      std::int64_t rows = 0;
      for (int from = 0; from < place.size; ++from) {
        rows += work.splits[static_cast<std::size_t>(from * place.size + place.rank)];
      }
      return rows;
    }
    default:
      return reducescatter_rows(work.request->dims[0], place.rank, place.size).count;
  }
}

bool hides_unequal_rows(const Work& work, std::int64_t rows) {
  if (work.request->kind != Kind::kAllgather) return false;
  const std::int64_t own = work.request->dims[0];
  return rows == own * static_cast<std::int64_t>(work.rows.size()) &&
         std::ranges::any_of(work.rows, [own](std::int64_t count) { return count != own; });
}

std::size_t taken_bytes(const Work& work, Place place) {
  const Request& request = *work.request;
  if (collective_of(request.kind).keeps_shape()) return request.size_bytes();
  return bytes_of_rows(request, result_rows(work, place));
}

bool is_adasum(std::span<const Work> works) {
  const auto is = [](const Work& work) { return work.request->op == ReduceOp::kAdasum; };
  if (std::ranges::none_of(works, is)) return false;
  if (!std::ranges::all_of(works, is)) {
    throw Error(ErrorCode::kInternal, "a bucket mixes Adasum with another reduce op");
  }
  return true;
}

void feed_back(Work& work) {
  KeptErrors& kept = *work.kept;
  const bool is_coded = is_low_bit(work.format);
  const std::size_t count = work.request->element_count();
  if (kept.size() == count && count != 0) {
    add_errors(work.request->dtype, work.in, kept.data(), count, work.out);
    work.in = work.out;
  }
  kept.resize(is_coded ? count : 0);
  if (is_coded) work.errors = kept.data();
}

View moved_view(const Work& work) {
  return {.in = work.in, .out = work.out, .size_bytes = work.request->size_bytes()};
}

View reduced_view(const Work& work, int size) {
  View view = moved_view(work);
  view.spec = spec_of(*work.request, size);
  view.format = work.format;
  view.errors = work.errors;
  view.rounding = work.rounding;
  return view;
}

void append_rows(const Work& work, Place place, std::vector<ViewList>& streams) {
  std::size_t begin = 0;
  for (std::size_t rank = 0; rank < streams.size(); ++rank) {
    const std::size_t size_bytes = bytes_of_rows(*work.request, work.rows[rank]);
    streams[rank].append({.in = static_cast<int>(rank) == place.rank ? work.in : nullptr,
                          .out = at_offset(work.out, begin),
                          .size_bytes = size_bytes});
    begin += size_bytes;
  }
}

void append_parts(const Work& work, Place place, std::vector<ViewList>& streams) {
  for (int owner = 0; owner < place.size; ++owner) {
    const RowRange rows = reducescatter_rows(work.request->dims[0], owner, place.size);
    View view = reduced_view(work, place.size);
    view.in = at_offset(work.in, bytes_of_rows(*work.request, rows.begin));
    view.out = owner == place.rank ? work.out : nullptr;
    view.size_bytes = bytes_of_rows(*work.request, rows.count);
    streams[static_cast<std::size_t>(owner)].append(view);
  }
}

}  // namespace hvd
