#include "core/quiet_thread.h"

#include <doctest/doctest.h>

#include <future>

namespace hvd::test {
namespace {

bool takes_signals() {
  sigset_t blocked;
  pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
  return sigismember(&blocked, SIGINT) == 0;
}

TEST_CASE("a quiet thread takes no signals, and the thread that starts it still does") {
  bool is_quiet = false;
  quiet_thread([&] { is_quiet = !takes_signals(); }).join();
  CHECK(is_quiet);
  CHECK(takes_signals());
}

TEST_CASE("a detached thread runs without signals, and destroys what it was given") {
  std::promise<bool> quiet;
  const auto destroyed = std::make_shared<std::promise<void>>();
  std::shared_ptr<int> given(new int, [destroyed](const int* number) {
    delete number;
    destroyed->set_value();
  });
  start_detached([&quiet, given] { quiet.set_value(!takes_signals()); });
  given.reset();
  CHECK(quiet.get_future().get());
  destroyed->get_future().wait();
  CHECK(takes_signals());
}

}  // namespace
}  // namespace hvd::test
