// The timeline: recorded events of many ranks as one file of Chrome trace events.
//
// A tensor is a "process" of the trace, which viewers show as a group of rows. A rank is a row in
// the group. Group 0 has the buckets of each rank. Names of events are those of the documented
// timeline. One thread at a time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "control/request.h"
#include "trace/events.h"
#include "trace/json_file.h"

namespace hvd {

// A short text that is copied often. Always kBytes bytes are copied: a few moves of wide registers,
// and no call.
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

struct TimelineConfig {
  std::string path;
  std::size_t max_bytes = 1U << 30;
  bool mark_cycles = false;
  std::string data_plane = "native";    // what moves the data
  std::vector<std::string> rank_names;  // by rank: "rank 1 (pid 4711 on localhost)"
};

class Timeline {
 public:
  // Begins the file; times count from now on. Throws Error.
  explicit Timeline(TimelineConfig config);

  // A label of a rank. It must come before the events that refer to it.
  void add_label(int rank, std::uint32_t id, const Label& label);
  bool knows_label(int rank, std::uint32_t id) const;
  // The next event of a rank. `shift_ns` is added to its time, which is of its host's clock.
  void add(int rank, const Event& event, std::int64_t shift_ns = 0);
  // Events of a rank are missing here. Operations that began before will have no end.
  void note_loss(int rank, std::uint64_t count, std::int64_t time_ns);
  // From now on the clock of another host is known with this error.
  void note_clock(const std::string& host, std::int64_t shift_ns, std::int64_t error_ns,
                  std::int64_t time_ns);

  // Whether some rank is in the middle of a bucket.
  bool has_open_bucket() const;

  // Throws Error.
  void flush() { file_.flush(); }
  bool is_full() const { return file_.is_full(); }

 private:
  enum class Phase : std::uint8_t { kIdle, kNegotiating, kRunning };

  using Begin = ShortText<64>;
  // Few rows have thousands of events per second, so their common text is made once.
  struct Operation {
    const char* name = nullptr;
    Begin negotiation;  // {"name":"NEGOTIATE_ALLREDUCE","ph":"B"
    Begin run;          // {"name":"ALLREDUCE","ph":"B"
  };
  // A tensor of one rank.
  struct Row {
    std::uint32_t id = ~0U;  // of the label
    std::uint32_t group = 0;
    const Operation* operation = nullptr;
    Phase phase = Phase::kIdle;
    ShortText<40> place;  // ,"pid":3,"tid":1,"ts":
    std::string ending;   // ,"args":{"dtype":"float32","shape":"[2, 3]"}}
  };
  struct Bucket {
    std::uint32_t number = 0;
    std::int64_t start_ns = 0;
    bool is_open = false;
    std::vector<std::uint32_t> rows;
  };
  struct Rank {
    Begin arrival;                  // {"name":"1","ph":"X"
    std::vector<Row> rows;          // by label; one for each label that is kept
    std::map<int, Bucket> buckets;  // by process set
  };

  Rank& rank_at(int rank);
  Row* row_of(int rank, std::uint32_t id);
  std::uint32_t group_of(const Label& label);
  void begin_group(std::uint32_t group, const std::string& name);
  void name_row(std::uint32_t group, int rank);
  void spell(Row& row, int rank, const Label& label);
  const Operation& operation_of(const Label& label);

  void submit(int rank, const Event& event);
  void start_bucket(int rank, const Event& event);
  void fuse(int rank, const Event& event);
  void end_bucket(int rank, const Event& event);
  void end_with_error(int rank, const Event& event);
  void add_wait(int rank, const Event& event);
  void mark(int rank, const char* name, const Event& event);
  void end_row(Row& row, std::int64_t time_ns);

  // The text of an event of a row.
  void put(const Begin& begin, const Row& row, std::int64_t time_ns, std::string_view end);
  // The text of any other event, field by field.
  Timeline& open(std::string_view name, char phase, std::uint32_t group, int rank,
                 std::int64_t time_ns);
  Timeline& meta(std::string_view name, std::uint32_t group);
  Timeline& number(std::string_view field, std::int64_t value);
  Timeline& text(std::string_view field, std::string_view value);
  Timeline& arguments();
  void begin_field(std::string_view field);
  Timeline& span(std::int64_t duration_ns);
  void done(std::string_view end = "}");
  void put_us(std::int64_t nanoseconds);  // to a tenth

  const TimelineConfig config_;
  JsonFile file_;
  const std::int64_t start_ns_;
  std::string plane_;  // "NATIVE_"
  std::vector<Rank> ranks_;
  std::map<std::pair<int, std::string>, std::uint32_t> groups_;  // by process set and name
  std::set<std::pair<std::uint32_t, int>> named_rows_;
  std::map<std::string_view, Operation> operations_;  // by name
  // The time of the last event of a row, and its text. The next event often has the same time.
  std::int64_t stamp_ns_ = -1;
  ShortText<32> stamp_;
  std::string line_;
};

}  // namespace hvd
