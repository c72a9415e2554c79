// Data links with seals, over a socket pair: what comes is what was sent, or an error.
#include "transport/record_stream.h"

#include <doctest/doctest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <random>

#include "seals.h"
#include "transport/link.h"

namespace hvd {
namespace {

using Bytes = std::vector<std::byte>;

Bytes random_bytes(std::size_t size_bytes, std::mt19937& random) {
  Bytes bytes(size_bytes);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

struct Ends {
  explicit Ends(bool is_encrypting, int socket_bytes = 0) {
    int fds[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0);
    for (const int fd : fds) {
      if (socket_bytes == 0) break;
      setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &socket_bytes, sizeof socket_bytes);
    }
    const auto [one, other] = test::seals_pair(is_encrypting);
    left = std::make_unique<Link>(fds[0], 7, one);
    right = std::make_unique<Link>(fds[1], 8, other);
  }
  std::unique_ptr<Link> left;
  std::unique_ptr<Link> right;
};

// Posts `bytes` in pieces of random size, now and then; the memory of a piece is its own.
class Poster {
 public:
  Poster(std::size_t size_bytes, std::mt19937& random) : left_bytes_(size_bytes), random_(random) {}

  template <typename Post>
  void some(Post&& post) {
    for (int i = static_cast<int>(random_() % 4); i > 0 && left_bytes_ > 0; --i) {
      const std::size_t most = random_() % 3 == 0 ? 300'000 : 2'000;
      const std::size_t length = std::min<std::size_t>(1 + random_() % most, left_bytes_);
      post(length);
      left_bytes_ -= length;
    }
  }
  bool is_done() const { return left_bytes_ == 0; }

 private:
  std::size_t left_bytes_;
  std::mt19937& random_;
};

void check_one_way(bool is_encrypting, unsigned seed) {
  std::mt19937 random(seed);
  Ends ends(is_encrypting, random() % 2 == 0 ? 0 : 4096);
  const Bytes sent = random_bytes(1 + random() % 1'500'000, random);
  std::vector<Bytes> pieces;  // where they lie in memory has nothing to do with their order
  Poster sends(sent.size(), random);
  Poster receives(sent.size(), random);
  std::size_t posted = 0;
  while (
      !(sends.is_done() && receives.is_done() && ends.left->is_idle() && ends.right->is_idle())) {
    sends.some([&](std::size_t length) {
      ends.left->send(sent.data() + posted, length);
      posted += length;
    });
    receives.some([&](std::size_t length) {
      pieces.emplace_back(length);
      ends.right->receive(pieces.back().data(), length);
    });
    const std::uint64_t before = ends.right->receives().moved();
    if (random() % 4 != 0) ends.left->pump();
    if (random() % 4 != 0) ends.right->pump();
    REQUIRE(ends.right->receives().moved() >= before);
    REQUIRE(ends.right->receives().moved() <= ends.left->sends().end());
  }
  Bytes received;
  for (const Bytes& piece : pieces) received.insert(received.end(), piece.begin(), piece.end());
  CHECK(received == sent);
}

TEST_CASE(
    "records: whatever the cuts and the posts, the bytes that come are those that were sent") {
  for (unsigned seed = 0; seed < 40; ++seed) {
    CAPTURE(seed);
    check_one_way(false, seed);
    check_one_way(true, seed);
  }
}

TEST_CASE("records: both ways at once, and what is dropped goes to one place again and again") {
  for (const bool is_encrypting : {false, true}) {
    std::mt19937 random(5);
    Ends ends(is_encrypting);
    const Bytes there = random_bytes(3'000'000, random);
    const Bytes back = random_bytes(2'000'000, random);
    Bytes got_back(1'000'000);
    Bytes dropped(1000);
    Bytes dropped_back(1000);
    ends.left->send(there.data(), there.size());
    ends.right->send(back.data(), back.size());
    for (int i = 0; i < 3000; ++i) ends.right->receive(dropped.data(), dropped.size());
    for (int i = 0; i < 1000; ++i) ends.left->receive(dropped_back.data(), dropped_back.size());
    ends.left->receive(got_back.data(), got_back.size());
    while (!(ends.left->is_idle() && ends.right->is_idle())) {
      const bool has_moved = ends.left->pump();
      REQUIRE((ends.right->pump() || has_moved));
    }
    CHECK(std::equal(got_back.begin(), got_back.end(), back.begin() + 1'000'000));
    CHECK(std::equal(dropped.begin(), dropped.end(), there.end() - 1000));
  }
}

// An attacker has what the left end of a link sends, and gives the right end something else.
class Wiretap {
 public:
  explicit Wiretap(bool is_encrypting) {
    int from[2];
    int to[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, from) == 0);
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, to) == 0);
    const auto [one, other] = test::seals_pair(is_encrypting);
    left = std::make_unique<Link>(from[0], 7, one);
    right = std::make_unique<Link>(to[1], 3, other);
    near_end = from[1];
    far_end = to[0];
  }
  ~Wiretap() {
    close(near_end);
    if (far_end >= 0) close(far_end);
  }
  Wiretap(const Wiretap&) = delete;
  Wiretap& operator=(const Wiretap&) = delete;

  Bytes caught(const Bytes& sent) {
    left->send(sent.data(), sent.size());
    left->pump();
    REQUIRE(left->is_idle());
    Bytes bytes(1 << 20);
    bytes.resize(static_cast<std::size_t>(recv(near_end, bytes.data(), bytes.size(), 0)));
    return bytes;
  }
  // What the right end sends, after it was given `bytes`.
  void give(const Bytes& bytes) const {
    REQUIRE(send(far_end, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
  }
  // Pumps the right end until nothing moves; whether that was an alteration.
  bool is_altered() const {
    try {
      while (right->pump()) {
      }
      return false;
    } catch (const LinkLost& lost) {
      CHECK(lost.rank() == 3);
      CHECK(lost.code() == ErrorCode::kPeerLost);
      CHECK(lost.is_altered());
      CHECK(lost.reason() ==
            "a record on the data link from it was altered, repeated or left out on its way");
      return true;
    }
  }

  std::unique_ptr<Link> left;
  std::unique_ptr<Link> right;
  int near_end = -1;
  int far_end = -1;
};

Bytes part(const Bytes& bytes, std::size_t begin, std::size_t size_bytes) {
  const auto from = bytes.begin() + static_cast<std::ptrdiff_t>(begin);
  return {from, from + static_cast<std::ptrdiff_t>(size_bytes)};
}

constexpr std::size_t kHeader = 4 + kTagBytes;

TEST_CASE("records: any flipped bit is an error at once, and its bytes do not count as come") {
  std::mt19937 random(2);
  const Bytes sent = random_bytes(40, random);
  for (const bool is_encrypting : {false, true}) {
    for (std::size_t bit = 0; bit < (kHeader + 40 + kTagBytes) * 8; ++bit) {
      Wiretap tap(is_encrypting);
      Bytes record = tap.caught(sent);
      REQUIRE(record.size() == kHeader + 40 + kTagBytes);
      record[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
      Bytes received(100);
      tap.right->receive(received.data(), 30);  // less than the record has
      tap.give(record);
      REQUIRE(tap.is_altered());
      REQUIRE(tap.right->receives().moved() == 0);
    }
  }
}

TEST_CASE("records: repeated, moved, left out, reflected and foreign ones are an error") {
  std::mt19937 random(3);
  for (const bool is_encrypting : {false, true}) {
    Wiretap tap(is_encrypting);
    Bytes received(1000);
    tap.right->receive(received.data(), received.size());
    const Bytes first = tap.caught(random_bytes(50, random));
    const Bytes second = tap.caught(random_bytes(50, random));
    SUBCASE("repeated") {
      tap.give(first);
      CHECK(!tap.is_altered());
      tap.give(first);
    }
    SUBCASE("moved") { tap.give(second); }
    SUBCASE("a header left out") { tap.give(part(first, kHeader, 50 + kTagBytes)); }
    SUBCASE("a body of the other one") {
      tap.give(part(first, 0, kHeader));
      tap.give(part(second, kHeader, 50 + kTagBytes));
    }
    SUBCASE("reflected") {
      const Bytes own = random_bytes(50, random);
      tap.right->send(own.data(), own.size());
      tap.right->pump();
      Bytes bytes(1000);
      bytes.resize(static_cast<std::size_t>(recv(tap.far_end, bytes.data(), bytes.size(), 0)));
      tap.give(bytes);
    }
    SUBCASE("of another link") {
      Wiretap other(is_encrypting);
      tap.give(other.caught(random_bytes(50, random)));
    }
    CHECK(tap.is_altered());
  }
}

TEST_CASE("records: one cut short never counts, and the end of the connection is an error") {
  std::mt19937 random(4);
  for (const bool is_encrypting : {false, true}) {
    Wiretap tap(is_encrypting);
    Bytes received(50);
    tap.right->receive(received.data(), received.size());
    const Bytes record = tap.caught(random_bytes(50, random));
    tap.give(part(record, 0, record.size() - 1));
    CHECK(!tap.is_altered());
    CHECK(tap.right->receives().moved() == 0);
    close(std::exchange(tap.far_end, -1));
    CHECK_THROWS_WITH_AS(tap.right->pump(), doctest::Contains("closed at the other end"), LinkLost);
  }
}

TEST_CASE("records: a peer that knows the key and claims too much is refused") {
  const auto [here, there] = test::seals_pair();
  for (const std::uint32_t size_bytes : {0U, static_cast<std::uint32_t>(kRecordBytes) + 1, ~0U}) {
    int fds[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0);
    Link link(fds[0], 3, here);
    Bytes header(kHeader);
    there->sealer.begin();
    there->sealer.encrypt(reinterpret_cast<const std::byte*>(&size_bytes), header.data(), 4);
    there->sealer.end(header.data() + 4);
    REQUIRE(send(fds[1], header.data(), header.size(), 0) == static_cast<ssize_t>(kHeader));
    std::byte wanted{};
    link.receive(&wanted, 1);
    CHECK_THROWS_WITH_AS(link.pump(), doctest::Contains("it sent a record of"), LinkLost);
    close(fds[1]);
  }
}

TEST_CASE("records: what is encrypted is not in what travels, and what is covered is") {
  std::mt19937 random(6);
  const Bytes sent = random_bytes(1000, random);
  for (const bool is_encrypting : {false, true}) {
    Wiretap tap(is_encrypting);
    const Bytes caught = tap.caught(sent);
    CHECK(std::ranges::search(caught, part(sent, 500, 16)).empty() == is_encrypting);
  }
}

}  // namespace
}  // namespace hvd
