#include "bindings/completions_py.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/error_py.h"
#include "bindings/streams_py.h"
#include "runtime/engine.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace hvd {

namespace {

// Filled by the threads that make progress, emptied by one thread of Python.
class Completed {
 public:
  using Item = std::pair<HandleId, HandleTable::Result>;

  void put(HandleId handle, HandleTable::Result result) {
    {
      const std::lock_guard guard(mutex_);
      items_.emplace_back(handle, std::move(result));
    }
    changed_.notify_one();
  }

  // Nothing once it is closed.
  std::optional<Item> take() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return is_closed_ || !items_.empty(); });
    if (items_.empty()) return std::nullopt;
    Item item = std::move(items_.front());
    items_.pop_front();
    return item;
  }

  void close() {
    {
      const std::lock_guard guard(mutex_);
      is_closed_ = true;
    }
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Item> items_;
  bool is_closed_ = false;
};

// Continuations keep `completed` alive, also after this object is gone.
struct Completions {
  std::shared_ptr<Completed> completed = std::make_shared<Completed>();
};

using Taken = std::tuple<HandleId, std::vector<Output>, nb::object>;

void add(Completions& completions, Engine& engine, HandleId handle) {
  const nb::gil_scoped_release release;
  engine.continue_with(handle, [completed = completions.completed, handle](auto result) {
    completed->put(handle, std::move(result));
  });
}

std::optional<Taken> take(Completions& completions) {
  std::optional<Completed::Item> item;
  {
    const nb::gil_scoped_release release;
    item = completions.completed->take();
  }
  if (!item) return std::nullopt;
  auto& [handle, result] = *item;
  arrive(result);
  return Taken{handle, std::move(result.outputs),
               result.error ? to_python(*result.error) : nb::none()};
}

}  // namespace

void bind_completions(nb::module_& module) {
  nb::class_<Completions>(module, "Completions",
                          "The results of operations that no thread waits for, in their order.")
      .def(nb::init<>())
      .def("add", &add, "engine"_a, "handle"_a,
           "From now on the handle is not to be waited for: ``take`` gives its result.")
      .def("take", &take,
           "Waits for the next result: its handle, outputs, and error or None. None when closed.")
      .def("close", [](Completions& completions) { completions.completed->close(); });
}

}  // namespace hvd
