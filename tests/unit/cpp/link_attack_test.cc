// An attacker between two hosts: passes everything on, and flips one bit on its way. Every
// rank gets an error that names the link; nothing hangs, and no wrong result comes.
#include <doctest/doctest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <latch>
#include <random>

#include "contains.h"
#include "world_of_threads.h"

namespace hvd::test {
namespace {

class Proxy {
 public:
  ~Proxy() {
    if (!thread_.joinable()) return;
    is_over_.store(true);
    thread_.join();
    close(here_);
    close(there_);
  }

  // Stands between the owner of `fd` and whatever is at its other end from now on.
  void enter(int& fd) {
    const Pair pair = connected_pair();
    there_ = std::exchange(fd, pair.first);
    here_ = pair.second;
    thread_ = std::thread([this] { run(); });
  }
  // Of what comes next for the owner; `bit` of the piece that is passed on, or the last before it.
  void flip(unsigned bit) {
    bit_.store(bit);
    must_flip_.store(true);
  }
  bool has_flipped() const { return has_flipped_.load(); }

 private:
  void run() {
    std::array<pollfd, 2> polls{pollfd{.fd = here_, .events = POLLIN, .revents = 0},
                                pollfd{.fd = there_, .events = POLLIN, .revents = 0}};
    while (!is_over_.load()) {
      poll(polls.data(), polls.size(), 10);
      if (polls[0].revents != 0 && !pass(here_, there_)) polls[0].fd = -1;
      if (polls[1].revents != 0 && !pass(there_, here_)) polls[1].fd = -1;
    }
  }
  // False at the end of what comes from there.
  bool pass(int from, int to) {
    std::array<std::byte, 4096> bytes;
    const ssize_t count = recv(from, bytes.data(), bytes.size(), 0);
    if (count < 0) return errno == EAGAIN || errno == EINTR;
    if (count == 0) {
      shutdown(to, SHUT_WR);
      return false;
    }
    const auto size = static_cast<std::size_t>(count);
    if (to == here_ && must_flip_.exchange(false)) {
      const std::size_t bit = bit_.load() % (size * 8);
      bytes[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
      has_flipped_.store(true);
    }
    for (std::size_t sent = 0; sent < size && !is_over_.load();) {
      const ssize_t taken = send(to, bytes.data() + sent, size - sent, MSG_NOSIGNAL);
      if (taken < 0 && errno != EAGAIN) return false;
      if (taken > 0) sent += static_cast<std::size_t>(taken);
    }
    return true;
  }

  int here_ = -1;
  int there_ = -1;
  std::atomic<unsigned> bit_{0};
  std::atomic<bool> must_flip_{false};
  std::atomic<bool> has_flipped_{false};
  std::atomic<bool> is_over_{false};
  std::thread thread_;
};

enum class Target { kControl, kNews, kData };

// Ranks 0 and 1 on one host, 2 and 3 on the other; the proxy is in front of rank 0.
class Attacked {
 public:
  Attacked(Target target, bool is_encrypting)
      : world_(
            4, [](EngineConfig&) {}, [](int) { return std::vector<WatchedProcess>{}; },
            Hosts{{0, 1}, {2, 3}},
            [&](int rank, Connections& own) {
              for (DataLink& link : own.world.data) {
                const SealsPair& seals = seals_of(link.channel, is_encrypting);
                link.seals = rank < 2 ? seals.first : seals.second;
              }
              if (rank != 0) return;
              if (target == Target::kControl) proxy.enter(own.world.control.at(0).fd);
              if (target == Target::kNews) proxy.enter(own.news.at(0).fd);
              if (target == Target::kData) proxy.enter(own.world.data.at(0).fd);
            }) {}

  WorldOfThreads& world() { return world_; }
  Proxy proxy;

 private:
  const SealsPair& seals_of(int channel, bool is_encrypting) {
    const auto [at, is_new] = seals_.try_emplace(channel);
    if (is_new) at->second = seals_pair(is_encrypting);
    return at->second;
  }

  std::map<int, SealsPair> seals_;
  WorldOfThreads world_;
};

void sum_up(Engine& engine) {
  std::vector<float> values(50'000, 1.0F);
  finish(engine, submit(engine, in_place("sum", values)));
  CHECK(values.front() == 4.0F);
  CHECK(values.back() == 4.0F);
}

void check_flip(Target target, bool is_encrypting, unsigned bit) {
  Attacked attacked(target, is_encrypting);
  std::latch working(4);  // the world ends for all at the flip, also for a rank that is behind
  attacked.world().run([&](int rank, Engine& engine) {
    for (int i = 0; i < 3; ++i) sum_up(engine);
    working.arrive_and_wait();
    if (rank == 0) attacked.proxy.flip(bit);
    const auto deadline = Clock::now() + kPatience;
    const std::string text = error_of([&] {
      while (Clock::now() < deadline) sum_up(engine);
    });
    const std::string link = target == Target::kControl ? "control" : "data";
    CHECK_MESSAGE(contains(text, "lost the connection to rank 2: a record on the " + link +
                                     " link from it was altered, repeated or left out on its way"),
                  text);
    CHECK(!error_of([&] { sum_up(engine); }).empty());
  });
  CHECK(attacked.proxy.has_flipped());
}

TEST_CASE("attack: any bit that is flipped on a control link is an error on all ranks") {
  std::mt19937 random(11);
  for (int i = 0; i < 20; ++i) check_flip(Target::kControl, false, random());
}

TEST_CASE("attack: any bit that is flipped on a data link with seals is an error on all ranks") {
  std::mt19937 random(12);
  for (int i = 0; i < 10; ++i) {
    check_flip(Target::kData, false, random());
    check_flip(Target::kData, true, random());
  }
}

TEST_CASE("attack: a bit that is flipped in news is an error, not a silence") {
  std::mt19937 random(13);
  for (int i = 0; i < 10; ++i) {
    Attacked attacked(Target::kNews, false);
    std::latch working(4);
    std::atomic<int> waiting{3};
    attacked.world().run([&](int rank, Engine& engine) {
      for (int round = 0; round < 3; ++round) sum_up(engine);
      working.arrive_and_wait();
      if (rank == 0) attacked.proxy.flip(random());
      if (rank == 3) {
        while (waiting.load() != 0) std::this_thread::yield();
        engine.shutdown();
        return;
      }
      --waiting;
      const std::string text = error_of([&] { sum_up(engine); });
      CHECK(!text.empty());
      if (rank == 2) return;  // it sees that rank 3 has shut down
      CHECK_MESSAGE(contains(text, "lost the connection to rank 2: a record on the news link"),
                    text);
    });
    CHECK(attacked.proxy.has_flipped());
  }
}

}  // namespace
}  // namespace hvd::test
