#include "targets.h"

#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>

#include "backend/device_capabilities.h"
#include "backend/status_agreement.h"
#include "core/error.h"
#include "runtime/news.h"
#include "runtime/timeline_collector.h"
#include "seals.h"
#include "transport/message_link.h"
#include "tree_host.h"

namespace hvd::fuzz {

namespace {

const NewsScope kScope{.size = 6, .sender = {0, 1, 2}, .own = {3, 4}};

Bytes bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

void require(bool condition) {
  if (!condition) std::abort();
}

template <typename Decode>
void try_to(Decode&& decode) {
  try {
    decode();
  } catch (const BadMessage& bad) {
    require(!bad.fault().field.empty() && !bad.fault().message.empty());
  }
}

template <int host>
void run_tree(std::span<const std::byte> bytes) {
  play(host, bytes);
}

template <int host>
std::vector<Bytes> tree_seeds() {
  return record(host);
}

// What is let through is written as it was read, but for its text.
void run_news(std::span<const std::byte> bytes) {
  try_to([&] {
    const NewsItem item = read_news(bytes, kScope);
    const std::vector<std::byte> again = write_news(item);
    const NewsItem twice = read_news(again, kScope);
    require(twice.alarm.rank == item.alarm.rank && twice.alarm.ranks == item.alarm.ranks);
  });
}

std::vector<Bytes> news_seeds() {
  std::vector<Bytes> seeds;
  seeds.push_back(write_news({.alarm = {.code = ErrorCode::kPeerLost, .rank = 5, .text = "died"}}));
  seeds.push_back(write_news({.alarm = {.code = ErrorCode::kTimeout,
                                        .rank = 0,
                                        .text = "allreduce 'x' waits",
                                        .ranks = {0, 3, 5},
                                        .operation = "allreduce 'x'"}}));
  for (const Liveness liveness : {Liveness::kLeft, Liveness::kDead, Liveness::kFailed}) {
    seeds.push_back(write_news({.liveness = liveness, .alarm = {.rank = 1, .text = {}}}));
  }
  const auto note = [&](NoteKind kind, int rank, const char* text) {
    seeds.push_back(write_news({.alarm = {.rank = rank, .text = text}, .note = kind}));
  };
  note(NoteKind::kQuestion, 3, "");
  note(NoteKind::kAnswer, 2, "waits\n\x1b for 2 s");
  note(NoteKind::kBeginTrace, 1, "");
  note(NoteKind::kEndTrace, 0, "");
  note(NoteKind::kTrace, 0, "chunk");
  return seeds;
}

// A file in memory, for what writes timelines.
class MemoryFile {
 public:
  MemoryFile() : fd_(memfd_create("timeline", MFD_CLOEXEC)) {}
  ~MemoryFile() { close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  const int fd_;
};

// Two chunks, so that the second meets what the first has left.
void run_trace(std::span<const std::byte> bytes) {
  const MemoryFile file;
  TimelineCollector collector({.path = file.path(), .max_bytes = 1U << 20, .rank_names = {}}, {},
                              {{.ranks = {1, 2}, .name = "another host"}});
  const std::size_t middle = bytes.empty() ? 0 : std::to_integer<std::size_t>(bytes[0]) * 8 + 1;
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  try_to([&] {
    if (text.size() > 1) collector.receive(1, text.substr(1, middle));
    if (text.size() > middle + 1) collector.receive(1, text.substr(1 + middle));
  });
  collector.collect();
}

std::vector<Bytes> trace_seeds() {
  TraceChunk chunk{.rank = 1, .lost = 3, .labels = {}, .events = {}};
  Label label{.key = 4, .kind = 0, .dtype = 6, .dims_count = 2, .dims = {2, 3}, .op = 1};
  label.set_name("weight");
  chunk.labels.emplace_back(7, label);
  for (int i = 0; i <= static_cast<int>(EventKind::kBlocked); ++i) {
    chunk.events.push_back({.time_ns = 1000 * i,
                            .kind = static_cast<EventKind>(i),
                            .subject = i == 3 || i == 5 ? 1U : 7U,
                            .value = 7});
  }
  const std::string one = write_chunk(chunk);
  // Its length, as run_trace takes it, where the second one begins.
  std::vector<Bytes> seeds{bytes_of("\xff" + one)};
  chunk.events.resize((255 * 8 + 1 - one.size()) / sizeof(Event), {.time_ns = 9});
  seeds.push_back(bytes_of(std::string(1, static_cast<char>((one.size() - 1) / 8)) + one + one));
  seeds.push_back(bytes_of("\xff" + write_chunk(chunk) + one));
  return seeds;
}

void run_devices(std::span<const std::byte> bytes) {
  try_to([&] {
    const DeviceCapabilities capabilities = read_capabilities(bytes);
    const std::array ranks{capabilities, capabilities};
    const std::array<std::string, 2> names{"rank 0", "rank 1"};
    nccl_obstacle(ranks, names);
    require(common_route(ranks, Kind::kAllreduce) <= DeviceRoute::kHost);
    require(common_streams(ranks) >= 1);
    require(write_capabilities(capabilities).size() == bytes.size());
  });
  try_to([&] { StatusAgreement::read_problem(bytes); });
}

std::vector<Bytes> device_seeds() {
  DeviceCapabilities capabilities{
      .nccl_version = 23203, .streams = 2, .uuid = {}, .problem = "none"};
  capabilities.routes[1] = DeviceRoute::kHost;
  capabilities.is_hierarchical[2] = true;
  Bytes status(256);
  status[0] = std::byte{'x'};
  return {write_capabilities(capabilities), status};
}

// Any stream of bytes at a connection for messages, whose keys are always the same: what is heard
// is what was sealed, from the first message on.
constexpr Key kLinkKey{};

std::vector<Bytes> link_messages() { return {bytes_of("abc"), Bytes{}, Bytes(100, std::byte{7})}; }

std::shared_ptr<LinkSeals> link_seals() {
  return std::make_shared<LinkSeals>(test::crypto_library(), kLinkKey, kLinkKey, true);
}

void run_link(std::span<const std::byte> bytes) {
  const Pair pair = connected_pair();
  MessageLink link(pair.first.fd, 1, link_seals(), "control link");
  const std::vector<Bytes> sealed = link_messages();
  std::size_t heard = 0;
  for (const bool is_last : {false, true}) {
    const std::size_t half = bytes.size() / 2;
    const auto part = is_last ? bytes.subspan(half) : bytes.first(half);
    if (!part.empty()) send(pair.second.fd, part.data(), part.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    link.receive([&](auto message) {
      require(heard < sealed.size() && std::ranges::equal(message, sealed[heard]));
      ++heard;
    });
  }
  close(pair.second.fd);
}

std::vector<Bytes> link_seeds() {
  const Pair pair = connected_pair();
  {
    MessageLink link(pair.first.fd, 1, link_seals(), "control link");
    for (const Bytes& message : link_messages()) link.post(message);
  }
  Bytes stream(4096);
  const ssize_t size = recv(pair.second.fd, stream.data(), stream.size(), 0);
  require(size > 0);
  stream.resize(static_cast<std::size_t>(size));
  close(pair.second.fd);
  return {stream, bytes_of("\xff\xff\xff\xff")};
}

constexpr Target kTargets[] = {
    {.name = "tree_root", .run = run_tree<0>, .seeds = tree_seeds<0>},
    {.name = "tree_middle", .run = run_tree<2>, .seeds = tree_seeds<2>},
    {.name = "tree_leaf", .run = run_tree<3>, .seeds = tree_seeds<3>},
    {.name = "news", .run = run_news, .seeds = news_seeds},
    {.name = "trace", .run = run_trace, .seeds = trace_seeds},
    {.name = "devices", .run = run_devices, .seeds = device_seeds},
    {.name = "link", .run = run_link, .seeds = link_seeds},
};

}  // namespace

std::span<const Target> targets() { return kTargets; }

const Target& target_of(std::string_view name) {
  const auto found = std::ranges::find(kTargets, name, &Target::name);
  if (found != std::end(kTargets)) return *found;
  std::fprintf(stderr, "there is no target of this name\n");
  std::abort();
}

}  // namespace hvd::fuzz
