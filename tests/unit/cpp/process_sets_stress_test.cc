// Everything at once: random operations on random process sets from several threads of every rank.
#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "world_of_threads.h"

namespace hvd::test {
namespace {

constexpr int kSize = 4;
constexpr int kThreads = 3;
const std::vector<std::vector<int>> kSets{{0, 1, 2, 3}, {0, 1}, {1, 2, 3}, {0, 3}, {2}, {0, 2, 3}};

// An operation as all members see it.
struct Plan {
  Kind kind = Kind::kAllreduce;
  int set = 0;
  std::int64_t rows = 0;  // a multiple of the members of any set
  bool is_grouped = false;

  const std::vector<int>& members() const { return kSets[static_cast<std::size_t>(set)]; }
};

Plan random_plan(std::mt19937& random) {
  constexpr Kind kKinds[] = {Kind::kAllreduce, Kind::kAllgather, Kind::kBroadcast,
                             Kind::kBarrier,   Kind::kAlltoall,  Kind::kReducescatter};
  Plan plan;
  plan.kind = kKinds[random() % std::size(kKinds)];
  plan.set = static_cast<int>(random() % kSets.size());
  plan.rows = random() % 8 == 0 ? 120'000 : 12 * static_cast<std::int64_t>(random() % 20);
  plan.is_grouped = plan.kind == Kind::kAllreduce && random() % 3 == 0;
  return plan;
}

// One rank's part of a plan: every element it gives is its rank + 1.
class Part {
 public:
  Part(const Plan& plan, int rank, std::string name) : plan_(plan) {
    const std::size_t count = plan.kind == Kind::kBarrier ? 0 : plan.is_grouped ? 3 : 1;
    values_.assign(count, std::vector<float>(static_cast<std::size_t>(plan.rows),
                                             static_cast<float>(rank + 1)));
    operation_ = barrier();
    operation_.name = std::move(name);
    if (count == 0) return;
    operation_.requests.assign(count, float_request(plan.kind, {plan.rows}));
    operation_.tensors.clear();
    const bool is_in_place = plan.kind == Kind::kAllreduce || plan.kind == Kind::kBroadcast;
    for (std::vector<float>& values : values_) {
      auto* bytes = reinterpret_cast<std::byte*>(values.data());
      operation_.tensors.push_back({.in = bytes, .out = is_in_place ? bytes : nullptr});
    }
    for (Request& request : operation_.requests) {
      request.root = plan.members().back();
      request.is_grouped = plan.is_grouped;
    }
  }

  void start(Engine& engine, Intent intent) {
    handle_ = submit(engine, operation_, intent, plan_.set);
  }

  // Whether the result is right.
  bool end(Engine& engine) {
    const std::vector<Output> outputs = finish(engine, handle_);
    if (plan_.kind == Kind::kBarrier) return true;
    if (!outputs.empty()) return is_expected(outputs[0]);
    return std::ranges::all_of(values_, [&](const std::vector<float>& values) {
      return std::ranges::count(values, expected()) == static_cast<std::ptrdiff_t>(values.size());
    });
  }

 private:
  // What the ranks of the set give, added up; of a broadcast, what the root gives.
  float expected() const {
    const std::vector<int>& members = plan_.members();
    if (plan_.kind == Kind::kBroadcast) return static_cast<float>(members.back() + 1);
    return static_cast<float>(std::accumulate(members.begin(), members.end(), 0) +
                              static_cast<int>(members.size()));
  }

  bool is_expected(const Output& output) const {
    const std::size_t size = plan_.members().size();
    const std::size_t rows = static_cast<std::size_t>(plan_.rows);
    const auto length = static_cast<std::size_t>(output.shape.at(0));
    const auto* found = reinterpret_cast<const float*>(output.bytes.get());
    if (plan_.kind == Kind::kReducescatter) {
      return length == rows / size &&
             std::count(found, found + length, expected()) == static_cast<std::ptrdiff_t>(length);
    }
    const std::size_t part = plan_.kind == Kind::kAllgather ? rows : rows / size;
    if (length != part * size) return false;
    for (std::size_t i = 0; i < length; ++i) {
      if (found[i] != static_cast<float>(plan_.members()[i / part] + 1)) return false;
    }
    return true;
  }

  const Plan plan_;
  std::vector<std::vector<float>> values_;
  Operation operation_;
  HandleId handle_ = 0;
};

// The same plans on all ranks; up to four are in flight, and end in any order.
void run_plans(int thread, int rank, Engine& engine, int count) {
  std::mt19937 agreed(static_cast<unsigned>(thread)), own(static_cast<unsigned>(rank + 100));
  std::vector<std::unique_ptr<Part>> flying;
  const auto end_all = [&] {
    std::shuffle(flying.begin(), flying.end(), own);
    for (const auto& part : flying) CHECK(part->end(engine));
    flying.clear();
  };
  for (int i = 0; i < count; ++i) {
    const Plan plan = random_plan(agreed);
    if (flying.size() == 4) end_all();
    if (std::ranges::find(plan.members(), rank) == plan.members().end()) continue;
    // Few enough names that they come again.
    const std::string name = std::to_string(thread) + " " + std::to_string(i % 64);
    flying.push_back(std::make_unique<Part>(plan, rank, name));
    flying.back()->start(engine, static_cast<Intent>(own() % 3));
  }
  end_all();
}

void check_stress(int cores, std::uint32_t cache_capacity, int count) {
  WorldOfThreads world(kSize, [&](EngineConfig& config) {
    config.usable_cores = cores;
    config.cache_capacity = cache_capacity;
  });
  for (std::size_t set = 1; set < kSets.size(); ++set) {
    world.add_set(static_cast<int>(set), kSets[set]);
  }
  world.run([count](int rank, Engine& engine) {
    std::vector<std::thread> threads;
    for (int thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([&engine, thread, rank, count] {
        CHECK(error_of([&] { run_plans(thread, rank, engine, count); }) == "");
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
}

TEST_CASE("random operations on random sets from several threads") {
  for (const int cores : {1, 2, 8}) {
    CAPTURE(cores);
    check_stress(cores, 1024, 150);
  }
  check_stress(1, 2, 150);  // slots change their names all the time
}

}  // namespace
}  // namespace hvd::test
