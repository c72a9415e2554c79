#include "trace/stack_snapshot.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <stdexcept>
#include <string>
#include <string_view>

namespace {

// Only the handlers read these.
int written_to = -1;
int crashes_file = -1;

void write_text(std::string_view text) {
  if (write(written_to, text.data(), text.size()) < 0) _exit(2);
}

void write_stacks(int /*signal*/) { write_text("all threads"); }

void write_half_and_crash(int /*signal*/) {
  write_text("half of all");
  kill(getpid(), SIGSEGV);
}

void crash_once(int signal_number) {
  char before = 0;
  if (pread(crashes_file, &before, 1, 0) == 0) {
    if (write(crashes_file, "1", 1) != 1) _exit(2);
    write_half_and_crash(signal_number);
  }
  write_stacks(signal_number);
}

void never_end(int /*signal*/) {
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_BLOCK, &all, nullptr);
  for (;;) pause();
}

class MemoryFile {
 public:
  MemoryFile() : fd_(memfd_create("stack_snapshot_test", MFD_CLOEXEC)) {
    if (fd_ < 0 || fcntl(fd_, F_SETFL, O_APPEND) != 0) throw std::runtime_error("no memory file");
  }
  ~MemoryFile() { close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  int fd() const { return fd_; }

 private:
  int fd_;
};

class Handled {
 public:
  explicit Handled(void (*handler)(int)) : before_(signal(SIGRTMAX, handler)) {
    written_to = file_.fd();
  }
  ~Handled() {
    signal(SIGRTMAX, before_);
    written_to = -1;
  }
  Handled(const Handled&) = delete;
  Handled& operator=(const Handled&) = delete;
  std::string snapshot() const { return hvd::stack_snapshot(SIGRTMAX, file_.fd()); }

 private:
  MemoryFile file_;
  void (*before_)(int);
};

}  // namespace

TEST_CASE("a snapshot is what the handler wrote, of this time alone") {
  const Handled handled(&write_stacks);
  CHECK(handled.snapshot() == "all threads");
  CHECK(handled.snapshot() == "all threads");
}

TEST_CASE("a handler that crashes ends a copy of the process, and nothing half written is shown") {
  const Handled handled(&write_half_and_crash);
  CHECK(handled.snapshot().empty());
}

TEST_CASE("a handler that crashed over a frame half made is asked again") {
  const MemoryFile crashes;
  crashes_file = crashes.fd();
  const Handled handled(&crash_once);
  CHECK(handled.snapshot() == "all threads");
}

TEST_CASE("a handler that does not come back is given up") {
  const Handled handled(&never_end);
  const auto start = std::chrono::steady_clock::now();
  CHECK(handled.snapshot().empty());
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(60));
}

TEST_CASE("without a handler that can run there is nothing to show") {
  CHECK(hvd::stack_snapshot(SIGRTMAX, -1).empty());
}
