// SIGUSR1 requests a recording. A free real-time signal makes the tracer thread look for requests.
// A signal handler has no object argument, so this file has variables of the whole process.
//
// The handlers are not Python's: signal.getsignal() returns the same as before. If the program sets
// its own handler, before or after, only that handler runs.
#include <nanobind/nanobind.h>
#include <signal.h>

#include <cerrno>
#include <thread>

#include "runtime/engine.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace hvd {

void bind_dump_signal(nb::module_& module);

namespace {

constexpr int kDumpSignal = SIGUSR1;
constexpr auto kHandlerPatience = std::chrono::milliseconds(100);

std::atomic<RecorderHeader*> wanted_from{nullptr};
std::atomic<int> handlers_running{0};
std::shared_ptr<Region> memory_of_recorder;  // keeps the header alive; under the GIL

void wake_tracer(bool wants_dump) {
  const int error = errno;
  handlers_running.fetch_add(1);
  if (RecorderHeader* header = wanted_from.load()) {
    if (wants_dump) header->dumps_wanted.fetch_add(1);
    header->calls.fetch_add(1);
    futex_wake_all(header->calls);
  }
  handlers_running.fetch_sub(1);
  errno = error;
}

extern "C" void want_dump(int /*signal*/) { wake_tracer(true); }
extern "C" void note_request(int /*signal*/) { wake_tracer(false); }

void handle(int signal_number, void (*handler)(int)) {
  struct sigaction action{};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(signal_number, &action, nullptr);
}

// The signal that makes the tracer thread look for requests; 0 if none is free. It keeps its
// handler, so a late signal does not end the process.
int request_signal() {
  for (int number = SIGRTMAX; number > SIGRTMIN; --number) {
    struct sigaction now{};
    sigaction(number, nullptr, &now);
    if (now.sa_handler == &note_request) return number;
    if (now.sa_handler != SIG_DFL) continue;
    handle(number, &note_request);
    return number;
  }
  return 0;
}

bool is_ours() {
  struct sigaction now{};
  sigaction(kDumpSignal, nullptr, &now);
  return now.sa_handler == &want_dump;
}

void point_at(RecorderHeader* header) {
  wanted_from.store(header);
  // In a child after fork the count may include a handler that no longer runs.
  const std::int64_t deadline_ns = now_ns() + Nanoseconds(kHandlerPatience).count();
  while (handlers_running.load() != 0 && now_ns() < deadline_ns) std::this_thread::yield();
}

// From now on the signal is for this engine. No effect if the program has its own handler.
bool watch_dump_signal(Engine& engine) {
  struct sigaction before{};
  sigaction(kDumpSignal, nullptr, &before);
  if (before.sa_handler != SIG_DFL && before.sa_handler != &want_dump) return false;
  const Recorder& recorder = engine.tracer().recorder();
  point_at(recorder.is_on() ? &recorder.header() : nullptr);
  memory_of_recorder = recorder.memory();
  if (!recorder.is_on()) return false;
  handle(kDumpSignal, &want_dump);
  return true;
}

// There is no engine any more.
void leave_dump_signal() {
  if (is_ours()) signal(kDumpSignal, SIG_DFL);
  point_at(nullptr);
  memory_of_recorder.reset();
}

}  // namespace

void bind_dump_signal(nb::module_& module) {
  module.def("request_signal", &request_signal);
  module.def("watch_dump_signal", &watch_dump_signal, "engine"_a);
  module.def("leave_dump_signal", &leave_dump_signal);
}

}  // namespace hvd
