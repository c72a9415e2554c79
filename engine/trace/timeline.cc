#include "trace/timeline.h"

#include <algorithm>
#include <charconv>
#include <span>
#include <utility>

#include "core/clock.h"
#include "core/dtype.h"
#include "core/text.h"
#include "trace/recorder.h"

namespace hvd {

namespace {

constexpr std::string_view kMark = R"({"name":"process_)";  // each timeline begins like that
constexpr std::string_view kLast =
    R"({"name":"process_sort_index","ph":"M","pid":0,"args":{"sort_index":0}})";

const char* operation_name(const Label& label) {
  if (static_cast<Kind>(label.kind) == Kind::kAllreduce &&
      static_cast<ReduceOp>(label.op) == ReduceOp::kAdasum) {
    return "ADASUM";
  }
  return label.kind < kKindCount ? upper_name_of(static_cast<Kind>(label.kind)) : "UNKNOWN";
}

constexpr ShortText<64> kEnd{R"({"ph":"E")"};

std::string dims_text(const Label& label) {
  const std::size_t known = std::min<std::size_t>(label.dims_count, Label::kMaxDims);
  std::string text = shape_text(std::span(label.dims).first(known));
  if (known < label.dims_count) text.replace(text.size() - 1, 1, ", ...]");
  return text;
}

std::string in_capitals(std::string text) {
  for (char& character : text) {
    if (character >= 'a' && character <= 'z') character = static_cast<char>(character - 'a' + 'A');
  }
  return text;
}

}  // namespace

Timeline::Timeline(TimelineConfig config)
    : config_(std::move(config)),
      file_(config_.path, kMark, kLast, config_.max_bytes),
      start_ns_(now_ns()),
      plane_(in_capitals(config_.data_plane) + '_') {
  meta("process_name", 0).arguments().text("name", "buckets");
  number("start_time_since_epoch_in_micros", epoch_ns() / 1000).done("}}");
  flush();
}

bool Timeline::has_open_bucket() const {
  return std::ranges::any_of(ranks_, [](const Rank& rank) {
    return std::ranges::any_of(rank.buckets, [](const auto& at) { return at.second.is_open; });
  });
}

void Timeline::add_label(int rank, std::uint32_t id, const Label& label) {
  std::vector<Row>& rows = rank_at(rank).rows;
  if (rows.empty()) rows.resize(Recorder::kLabels);
  Row& row = rows[id % Recorder::kLabels];
  row = {};
  row.id = id;
  row.group = group_of(label);
  spell(row, rank, label);
  name_row(row.group, rank);
}

void Timeline::spell(Row& row, int rank, const Label& label) {
  row.operation = &operation_of(label);
  line_.clear();
  number("pid", row.group).number("tid", rank).begin_field("ts");
  row.place = ShortText<40>(line_);
  line_.clear();
  arguments().text("dtype", name_of(static_cast<Dtype>(label.dtype)));
  row.ending = text("shape", dims_text(label)).line_ + "}}";
  line_.assign(1, '{');
  rank_at(rank).arrival = Begin(text("name", std::to_string(rank)).text("ph", "X").line_);
}

const Timeline::Operation& Timeline::operation_of(const Label& label) {
  const char* name = operation_name(label);
  Operation& operation = operations_[name];
  if (operation.name != nullptr) return operation;
  operation.name = name;
  line_.assign(1, '{');
  operation.run = Begin(text("name", name).text("ph", "B").line_);
  line_.assign(1, '{');
  operation.negotiation =
      Begin(text("name", "NEGOTIATE_" + std::string(name)).text("ph", "B").line_);
  return operation;
}

void Timeline::put(const Begin& begin, const Row& row, std::int64_t time_ns, std::string_view end) {
  if (time_ns != stamp_ns_) {
    line_.clear();
    put_us(time_ns - start_ns_);
    stamp_ = ShortText<32>(line_);
    stamp_ns_ = time_ns;
  }
  char* to = file_.begin_element(begin.size() + row.place.size() + stamp_.size() + end.size());
  if (to == nullptr) return;
  to = stamp_.put(row.place.put(begin.put(to)));
  file_.end_element(std::ranges::copy(end, to).out);
}

bool Timeline::knows_label(int rank, std::uint32_t id) const {
  if (static_cast<std::size_t>(rank) >= ranks_.size() || id == Recorder::kNoLabel) return false;
  const std::vector<Row>& rows = ranks_[static_cast<std::size_t>(rank)].rows;
  return !rows.empty() && rows[id % Recorder::kLabels].id == id;
}

void Timeline::add(int rank, const Event& event, std::int64_t shift_ns) {
  Event aligned = event;
  aligned.time_ns += shift_ns;
  switch (event.kind) {
    case EventKind::kSubmit:
      return submit(rank, aligned);
    case EventKind::kBucketStart:
      return start_bucket(rank, aligned);
    case EventKind::kFused:
      return fuse(rank, aligned);
    case EventKind::kBucketDone:
      return end_bucket(rank, aligned);
    case EventKind::kError:
      return end_with_error(rank, aligned);
    case EventKind::kWaited:
      return add_wait(rank, aligned);
    case EventKind::kAlarm:
      return mark(rank, "RANK_LOST", aligned);
    case EventKind::kStall:
      return mark(rank, "STALLED", aligned);
    case EventKind::kFailed:
      return mark(rank, "FAILED", aligned);
    default:
      return;
  }
}

void Timeline::note_loss(int rank, std::uint64_t count, std::int64_t time_ns) {
  for (Row& row : rank_at(rank).rows) end_row(row, time_ns);
  rank_at(rank).buckets.clear();
  open("EVENTS_LOST", 'i', 0, rank, time_ns).text("s", "t").arguments();
  number("count", static_cast<std::int64_t>(count)).done("}}");
}

void Timeline::note_clock(const std::string& host, std::int64_t shift_ns, std::int64_t error_ns,
                          std::int64_t time_ns) {
  open("CLOCK_ALIGNED", 'i', 0, 0, time_ns).text("s", "p").arguments();
  text("host", host).number("shift_ns", shift_ns).number("error_ns", error_ns).done("}}");
}

Timeline::Rank& Timeline::rank_at(int rank) {
  const auto index = static_cast<std::size_t>(rank);
  if (ranks_.size() <= index) ranks_.resize(index + 1);
  return ranks_[index];
}

Timeline::Row* Timeline::row_of(int rank, std::uint32_t id) {
  return knows_label(rank, id)
             ? &ranks_[static_cast<std::size_t>(rank)].rows[id % Recorder::kLabels]
             : nullptr;
}

std::uint32_t Timeline::group_of(const Label& label) {
  const auto next = static_cast<std::uint32_t>(groups_.size()) + 1;
  const auto [found, is_new] =
      groups_.try_emplace({label.process_set, std::string(label.text())}, next);
  if (is_new) {
    std::string name(label.text());
    if (label.process_set != 0) name += " (process set " + std::to_string(label.process_set) + ")";
    begin_group(next, name);
  }
  return found->second;
}

void Timeline::begin_group(std::uint32_t group, const std::string& name) {
  meta("process_name", group).arguments().text("name", name).done("}}");
  meta("process_sort_index", group).arguments().number("sort_index", group).done("}}");
}

Timeline& Timeline::meta(std::string_view name, std::uint32_t group) {
  line_.assign(1, '{');
  return text("name", name).text("ph", "M").number("pid", group);
}

void Timeline::name_row(std::uint32_t group, int rank) {
  if (!named_rows_.emplace(group, rank).second) return;
  const auto index = static_cast<std::size_t>(rank);
  const bool is_known = group == 0 && index < config_.rank_names.size();
  const std::string name = is_known ? config_.rank_names[index] : "rank " + std::to_string(rank);
  meta("thread_name", group).number("tid", rank).arguments().text("name", name).done("}}");
}

void Timeline::submit(int rank, const Event& event) {
  Row* row = row_of(rank, event.subject);
  if (row == nullptr) return;
  end_row(*row, event.time_ns);
  row->phase = Phase::kNegotiating;
  put(row->operation->negotiation, *row, event.time_ns, "}");
  put(rank_at(rank).arrival, *row, event.time_ns, R"(,"dur":0})");
}

void Timeline::start_bucket(int rank, const Event& event) {
  name_row(0, rank);
  Bucket& bucket = rank_at(rank).buckets[event.process_set];
  bucket.number = event.subject;
  bucket.start_ns = event.time_ns;
  bucket.is_open = true;
  bucket.rows.clear();
  if (!config_.mark_cycles || rank != 0) return;
  open("CYCLE_START", 'i', 0, rank, event.time_ns).text("s", "g").done();
}

void Timeline::fuse(int rank, const Event& event) {
  Row* row = row_of(rank, event.subject);
  if (row == nullptr) return;
  if (row->phase == Phase::kNegotiating) put(kEnd, *row, event.time_ns, "}");
  row->phase = Phase::kRunning;
  put(row->operation->run, *row, event.time_ns, "}");
  rank_at(rank).buckets[event.process_set].rows.push_back(event.subject);
}

void Timeline::end_bucket(int rank, const Event& event) {
  Bucket& bucket = rank_at(rank).buckets[event.process_set];
  const char* operation = "COLLECTIVE";
  for (const std::uint32_t id : bucket.rows) {
    Row* row = row_of(rank, id);
    if (row == nullptr || row->phase != Phase::kRunning) continue;
    operation = row->operation->name;
    row->phase = Phase::kIdle;
    put(kEnd, *row, event.time_ns, row->ending);
  }
  if (!bucket.is_open) return;
  bucket.is_open = false;
  open(plane_ + operation, 'X', 0, rank, bucket.start_ns)
      .span(event.time_ns - bucket.start_ns)
      .arguments();
  number("bucket", bucket.number).number("process_set", event.process_set);
  number("tensors", static_cast<std::int64_t>(bucket.rows.size()));
  number("waited_us", static_cast<std::int64_t>(event.value / 1000)).done("}}");
  bucket.rows.clear();
}

void Timeline::end_with_error(int rank, const Event& event) {
  Row* row = row_of(rank, event.subject);
  if (row == nullptr) return;
  open("ERROR", 'i', row->group, rank, event.time_ns).text("s", "t").arguments();
  number("code", static_cast<std::int64_t>(event.value)).done("}}");
  end_row(*row, event.time_ns);
}

void Timeline::add_wait(int rank, const Event& event) {
  name_row(0, rank);
  const auto waited_ns = static_cast<std::int64_t>(event.value);
  std::string name = "WAIT_FOR_RANK_";
  name += std::to_string(event.subject);
  open(name, 'X', 0, rank, event.time_ns - waited_ns).span(waited_ns).done();
}

void Timeline::mark(int rank, const char* name, const Event& event) {
  name_row(0, rank);
  open(name, 'i', 0, rank, event.time_ns).text("s", "g").arguments();
  number("subject", event.subject).done("}}");
}

void Timeline::end_row(Row& row, std::int64_t time_ns) {
  if (row.phase == Phase::kIdle) return;
  row.phase = Phase::kIdle;
  put(kEnd, row, time_ns, "}");
}

Timeline& Timeline::open(std::string_view name, char phase, std::uint32_t group, int rank,
                         std::int64_t time_ns) {
  line_.assign(1, '{');
  if (!name.empty()) text("name", name);
  text("ph", {&phase, 1}).number("pid", group);
  number("tid", rank);
  line_.append(",\"ts\":");
  put_us(time_ns - start_ns_);
  return *this;
}

Timeline& Timeline::number(std::string_view field, std::int64_t value) {
  char digits[24];
  const auto end = std::to_chars(digits, digits + sizeof digits, value).ptr;
  begin_field(field);
  line_.append(digits, end);
  return *this;
}

Timeline& Timeline::text(std::string_view field, std::string_view value) {
  begin_field(field);
  append_json_text(line_, value);
  return *this;
}

// done("}}") closes them, too.
Timeline& Timeline::arguments() {
  begin_field("args");
  line_ += '{';
  return *this;
}

void Timeline::begin_field(std::string_view field) {
  if (line_.empty() || line_.back() != '{') line_ += ',';
  line_.append("\"").append(field).append("\":");
}

Timeline& Timeline::span(std::int64_t duration_ns) {
  line_.append(",\"dur\":");
  put_us(std::max<std::int64_t>(duration_ns, 0));
  return *this;
}

void Timeline::done(std::string_view end) { file_.add(line_.append(end)); }

void Timeline::put_us(std::int64_t nanoseconds) {
  if (nanoseconds < 0) line_ += '-';
  const std::int64_t tenths = (std::abs(nanoseconds) + 50) / 100;
  char digits[32];
  char* end = std::to_chars(digits, digits + 24, tenths / 10).ptr;
  *end++ = '.';
  *end++ = static_cast<char>('0' + tenths % 10);
  line_.append(digits, end);
}

}  // namespace hvd
