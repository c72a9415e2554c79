// A link over a socket pair; how streams are cut for several hosts; the order of turns.
#include "transport/link.h"

#include <doctest/doctest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <set>

#include "collective/cluster_cut.h"
#include "collective/host_map.h"
#include "transport/peers.h"

namespace hvd {
namespace {

using Bytes = std::vector<std::byte>;

struct Pair {
  Pair() {
    int fds[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0);
    left = std::make_unique<Link>(fds[0], 7);
    right = std::make_unique<Link>(fds[1], 8);
  }
  std::unique_ptr<Link> left;
  std::unique_ptr<Link> right;
};

Bytes numbered(std::size_t size_bytes) {
  Bytes bytes(size_bytes);
  for (std::size_t i = 0; i < size_bytes; ++i) bytes[i] = static_cast<std::byte>(i * 7 % 251);
  return bytes;
}

TEST_CASE("link: bytes arrive where they are wanted, however both ends cut them") {
  Pair pair;
  const Bytes sent = numbered(3'000'000);
  Bytes received(sent.size());
  for (std::size_t at = 0; at < sent.size(); at += 1000) {
    pair.left->send(sent.data() + at, std::min<std::size_t>(1000, sent.size() - at));
  }
  std::set<std::size_t> cuts{0, 1, 2, 3, 64, 500'000, 500'001, 2'999'999};
  for (auto cut = cuts.begin(); cut != cuts.end(); ++cut) {
    const auto next = std::next(cut);
    const std::size_t end = next == cuts.end() ? sent.size() : *next;
    pair.right->receive(received.data() + *cut, end - *cut);
  }
  CHECK(pair.left->pump());
  CHECK(!pair.left->is_idle());  // more than the socket takes
  CHECK(!pair.left->pump());
  while (!pair.right->is_idle()) {
    REQUIRE(pair.right->pump());
    pair.left->pump();
  }
  CHECK(pair.left->is_idle());
  CHECK(pair.left->sends().moved() == sent.size());
  CHECK(pair.right->receives().moved() == sent.size());
  CHECK(received == sent);
}

TEST_CASE("link: bytes that are not posted for stay in the socket") {
  Pair pair;
  const Bytes sent = numbered(10);
  Bytes received(10);
  pair.left->send(sent.data(), 10);
  pair.left->pump();
  CHECK(!pair.right->pump());
  pair.right->receive(received.data(), 4);
  CHECK(pair.right->pump());
  CHECK(pair.right->is_idle());
  CHECK(received[3] == sent[3]);
  CHECK(received[4] == std::byte{});
}

void check_lost(Link& link) {
  try {
    while (link.pump()) {
    }
    FAIL("nothing was lost");
  } catch (const LinkLost& error) {
    CHECK(error.rank() == link.peer());
    CHECK(error.code() == ErrorCode::kPeerLost);
    CHECK(!error.reason().empty());
  }
}

TEST_CASE("link: a receive from a closed connection fails, once all is read") {
  Pair pair;
  const Bytes sent = numbered(10);
  Bytes received(20);
  pair.left->send(sent.data(), 10);
  pair.left->pump();
  pair.left.reset();
  pair.right->receive(received.data(), 10);
  CHECK(pair.right->pump());
  CHECK(!pair.right->pump());
  pair.right->receive(received.data(), 1);
  check_lost(*pair.right);
  pair.right->send(sent.data(), 10);
  check_lost(*pair.right);
}

TEST_CASE("turns: every chunk twice, the second time later by the lead") {
  for (const std::uint32_t chunks : {1U, 2U, 3U, 4U, 9U}) {
    for (const std::uint32_t lead : {1U, 3U, 4U}) {
      std::uint32_t first = 0;
      std::uint32_t second = 0;
      for (std::uint32_t index = 0; index < 2 * chunks; ++index) {
        const Turn turn = turn_of(index, chunks, lead);
        CHECK(turn.chunk == (turn.is_second ? second : first));
        if (turn.is_second) CHECK(first == std::min(second + lead, chunks));
        ++(turn.is_second ? second : first);
      }
      CHECK(first == chunks);
      CHECK(second == chunks);
    }
  }
}

TEST_CASE("cut: shares and parts cover every chunk, and fit what is kept for them") {
  const std::size_t cell = staging_sizes(8).staging_cell_bytes;
  for (const int hosts : {2, 3, 64, 1000}) {
    for (const int channels : {1, 2, 8}) {
      for (const std::size_t bytes : {64UL, 6400UL, 64'000UL, 640'000UL, 64'000'000UL}) {
        const ClusterCut cut = cut_for_cluster(bytes, channels, hosts, cell);
        REQUIRE(cut.chunk_bytes <= cell);
        const Range longest = cut.part(0, 0, 0);
        std::size_t covered = 0;
        for (std::uint32_t chunk = 0; chunk < cut.chunks; ++chunk) {
          for (int channel = 0; channel < channels; ++channel) {
            for (int host = 0; host < (cut.one_step ? 1 : hosts); ++host) {
              const Range part = cut.part(chunk, channel, host);
              REQUIRE(part.begin % kViewAlignment == 0);
              REQUIRE(part.end - part.begin <= longest.end - longest.begin);
              REQUIRE((part.begin == covered || part.begin == part.end));
              covered = std::max(covered, part.end);
            }
          }
        }
        REQUIRE(covered == bytes);
      }
    }
  }
}

TEST_CASE("cut: what a rank sends to one of many hosts is worth a message") {
  const std::size_t cell = staging_sizes(8).staging_cell_bytes;
  constexpr std::size_t kBytes = 256 * 1024 * 1024;
  for (const int hosts : {2, 16, 32, 64}) {
    for (const int channels : {1, 4, 8}) {
      const ClusterCut cut = cut_for_cluster(kBytes, channels, hosts, cell);
      const Range part = cut.part(0, 0, 0);
      CHECK(part.end - part.begin >= 16 * 1024);
    }
  }
}

TEST_CASE("host map: every channel has one owner on each host, every rank owns its own") {
  HostMap map;
  map.hosts = {{0, 3}, {1}, {2, 4, 5}};
  CHECK(map.channels() == 3);
  CHECK(map.rank_count() == 6);
  CHECK(map.owner(2, 0) == 0);
  CHECK(map.owner(2, 1) == 1);
  CHECK(map.owner(2, 2) == 5);
  for (int host = 0; host < map.host_count(); ++host) {
    for (int member = 0; member < map.members(host); ++member) {
      CHECK(map.owner_index(member, host) == member);
    }
  }
}

}  // namespace
}  // namespace hvd
