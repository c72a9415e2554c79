// Several process sets at once on GPUs that have room for one kernel: two ranks that launch those
// of two sets in different orders wait forever.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <random>
#include <thread>

#include "backend/device_buckets.h"
#include "backend/host_backend.h"
#include "caught_errors.h"
#include "control/tree_messages.h"
#include "data_world.h"
#include "device_world.h"

namespace hvd::test {
namespace {

// Each pair of ranks is a set, from 1 on; 0 is the world.
std::vector<int> add_pairs(DeviceWorld& world, int size, int rank) {
  std::vector<int> own{0};
  int set = 0;
  for (int high = 1; high < size; ++high) {
    for (int low = 0; low < high; ++low) {
      ++set;
      if (rank < 0) world.engines().add_set(set, {low, high});
      if (rank == low || rank == high) own.push_back(set);
    }
  }
  return own;
}

int size_of_world(const Hosts& hosts) {
  int size = 0;
  for (const auto& host : hosts) size += static_cast<int>(host.size());
  return size;
}

void run_at_once(Engine& engine, const DeviceRank& mine, const std::vector<int>& sets,
                 int world_size) {
  std::vector<DeviceFloats> tensors;
  std::vector<HandleId> handles;
  for (std::size_t i = 0; i < sets.size(); ++i) tensors.push_back(mine.floats({1.0F}));
  for (std::size_t i = 0; i < sets.size(); ++i) {
    const Operation operation = on_device_in_place("x", tensors[i]);
    handles.push_back(submit(engine, mine, operation, Intent::kCompute, sets[i]));
  }
  for (const HandleId handle : handles) finish_on_device(engine, handle);
  mine.synchronize();
  for (std::size_t i = 0; i < sets.size(); ++i) {
    const float expected = sets[i] == 0 ? static_cast<float>(world_size) : 2.0F;
    CHECK(tensors[i].values() == std::vector{expected});
  }
}

// All ranks use all their sets at once, each in an order of its own.
void run_in_any_order(DeviceWorld& world, int size) {
  add_pairs(world, size, -1);
  stand_in_limit_kernels(1);
  world.run([&](int rank, Engine& engine, DeviceRank& mine) {
    std::vector<int> sets = add_pairs(world, size, rank);
    std::mt19937 random(static_cast<unsigned>(rank));
    for (int round = 0; round < 20; ++round) {
      std::ranges::shuffle(sets, random);
      run_at_once(engine, mine, sets, size);
    }
  });
}

TEST_CASE("buckets of several sets are launched in one order") {
  constexpr int kSize = 4;
  for (const int streams : {1, 2}) {
    DeviceWorld world(kSize, {.streams = streams});
    run_in_any_order(world, kSize);
  }
}

TEST_CASE("buckets of several sets are launched in one order, also between hosts") {
  for (const Hosts& hosts : {Hosts{{0, 1}, {2, 3}}, Hosts{{0}, {1}, {2}}, Hosts{{0}, {1, 2}, {3}},
                             Hosts{{0}, {1}, {2}, {3}}}) {
    DeviceWorld world(size_of_world(hosts), {.hosts = hosts});
    run_in_any_order(world, size_of_world(hosts));
  }
}

TEST_CASE("a set whose tensors travel through the host holds up no launch of another set") {
  constexpr int kSize = 3;
  DeviceWorld world(kSize, {.route = DeviceRoute::kHost});
  add_pairs(world, kSize, -1);
  world.run([&](int rank, Engine& engine, DeviceRank& mine) {
    std::vector<int> sets = add_pairs(world, kSize, rank);
    if (rank == 1) std::ranges::reverse(sets);
    for (int round = 0; round < 20; ++round) run_at_once(engine, mine, sets, kSize);
  });
}

TEST_CASE("a bucket that waits for its turn says so") {
  stand_in_reset();
  stand_in_set_gpus(1);
  DevicePlane plane;
  plane.gpus = std::make_shared<GpuAccess>(CUDA_STAND_IN, std::vector<std::string>{NCCL_STAND_IN});
  bool is_turn = false;
  plane.may_launch = [&] { return is_turn; };
  DataWorld ranks(1);
  HostBackend host(*ranks.peers[0]);
  DeviceBuckets buckets(plane, host, {.rank = 0, .size = 1}, {.hosts = {{0}}}, {"rank 0"},
                        [](const std::string&) {});
  const DeviceFloats tensor(*plane.gpus->open(), 0, {1.0F});
  const Request request = float_request(Kind::kAllreduce, {1});
  std::vector<Work> works(1);
  works[0].request = &request;
  works[0].in = works[0].out = tensor.data();
  works[0].device = tensor.device();
  buckets.begin(Kind::kAllreduce, works, {});
  PeerWait blocked;
  const std::int64_t deadline = now_ns() + Nanoseconds(kPatience).count();
  while (!buckets.advance(blocked = {}) && !blocked.is_for_turn) REQUIRE(now_ns() < deadline);
  const PeerWait turn{.is_polled = true, .is_for_turn = true};
  CHECK(blocked == turn);
  is_turn = true;
  while (!buckets.advance(blocked = {})) REQUIRE(now_ns() < deadline);
}

TEST_CASE("a set that spans hosts is ordered once a rank with GPUs belongs to another one") {
  const Hosts hosts{{0}, {1}, {2}};
  for (const bool has_gpus : {false, true}) {
    EngineConfig config;
    config.size = 3;
    const auto space = SharedSpace::in_process();
    World world(config, *space, hosts);
    const Failures failures(world);
    DevicePlane plane;
    if (has_gpus) {
      plane.gpus = std::make_shared<GpuAccess>(CUDA_STAND_IN, std::vector<std::string>{});
    }
    const auto links_of = [&](const std::vector<int>& members) {
      return std::move(link_set(hosts, members, 3)[0]);
    };
    ProcessSets sets(world, failures, space, plane, links_of({0, 1, 2}));
    const auto is_ordered = [&](int set) { return sets.find(set)->negotiation.orders_launches(); };
    sets.add(1, {0}, {});
    sets.add(2, {1, 2}, {});
    CHECK(!is_ordered(0));
    sets.add(3, {0, 2}, links_of({0, 2}));
    sets.context_of(3, [] { return std::string("test"); });
    CHECK(is_ordered(0) == has_gpus);
    CHECK(is_ordered(3) == has_gpus);
    sets.remove(3);
    CHECK(is_ordered(0) == has_gpus);
  }
}

// Carries the control messages of the world of ranks 0 and 1, and can keep proposals back.
class Courier {
 public:
  Courier() : thread_([this] { run(); }) {}
  ~Courier() { cut(); }

  void connect(int rank, Connections& own) {
    LeaderLink& link = own.world.control.at(0);
    const auto index = static_cast<std::size_t>(rank);
    close(std::exchange(link.fd, sockets_[index].first));
    link.seals = seals_[index].first;
  }
  void keep_proposals() { keeps_proposals_ = true; }
  // The connections end.
  void cut() {
    is_over_ = true;
    if (thread_.joinable()) thread_.join();
    for (MessageLink& link : links_) link.close();
  }

 private:
  MessageLink link_to(int rank) {
    const auto index = static_cast<std::size_t>(rank);
    return {sockets_[index].second, rank, seals_[index].second, "control link"};
  }
  void run() {
    while (!is_over_) {
      for (const auto& [from, to] : {std::pair(0U, 1U), std::pair(1U, 0U)}) {
        links_[from].receive([&, other = to](std::span<const std::byte> message) {
          if (keeps_proposals_ && kind_of(message) == MessageKind::kProposed) return;
          links_[other].post(message);
        });
      }
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  }

  const std::array<Pair, 2> sockets_{connected_pair(), connected_pair()};
  const std::array<SealsPair, 2> seals_{seals_pair(), seals_pair()};
  std::array<MessageLink, 2> links_{link_to(0), link_to(1)};
  std::atomic<bool> keeps_proposals_{false};
  std::atomic<bool> is_over_{false};
  std::thread thread_;
};

TEST_CASE(
    "a bucket waits for its number; who holds it up is blamed, and a lost host ends the wait") {
  const CaughtErrors errors;
  Courier courier;
  DeviceWorld world(2,
                    {.hosts = {{0}, {1}},
                     .log_level = LogLevel::kWarning,
                     .configure = [](EngineConfig& config) { config.stall_check_time_s = 0.2; },
                     .connect = [&](int rank, Connections& own) { courier.connect(rank, own); }});
  world.engines().add_set(1, {0, 1});
  world.run([&](int, Engine& engine, DeviceRank& mine) { run_at_once(engine, mine, {0, 1}, 2); });
  courier.keep_proposals();
  std::barrier waited(2);
  world.run([&](int rank, Engine& engine, DeviceRank& mine) {
    const DeviceFloats y = mine.floats({1.0F});
    const DeviceFloats z = mine.floats({1.0F});
    const HandleId first = submit(engine, mine, on_device_in_place("y", y));
    CHECK(!engine.wait(first, std::chrono::milliseconds(200)));
    const HandleId behind = submit(engine, mine, on_device_in_place("z", z), Intent::kWait, 1);
    CHECK(!engine.wait(behind, std::chrono::milliseconds(1500)));
    waited.arrive_and_wait();
    if (rank == 0) courier.cut();
    for (const HandleId handle : {first, behind}) {
      CHECK(caught([&] { finish_on_device(engine, handle); }).code() == ErrorCode::kPeerLost);
    }
  });
  CHECK(errors.count("rank 1 has not moved for ") > 0);
  CHECK(errors.count(" in the middle of allreduce 'y'") == 1);
  CHECK(errors.count(" in the middle of allreduce 'z'") == 0);
}

}  // namespace
}  // namespace hvd::test
