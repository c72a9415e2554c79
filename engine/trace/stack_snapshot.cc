#include "trace/stack_snapshot.h"

#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <thread>

namespace hvd {

namespace {

constexpr std::size_t kMostBytes = 256 * 1024;
constexpr int kTries = 3;
constexpr std::chrono::seconds kMostTime(1);  // for a copy in an endless loop
constexpr std::chrono::microseconds kLook(200);

extern "C" void leave_copy(int /*signal*/) { _exit(1); }

// Replaces the program's handler for the signal. So a crash of the copy leaves no core file and no
// line in the kernel's log.
void end_at(int fatal, void (*handler)(int)) {
  signal(fatal, handler);
  sigset_t only;
  sigemptyset(&only);
  sigaddset(&only, fatal);
  sigprocmask(SIG_UNBLOCK, &only, nullptr);
}

[[noreturn]] void run_handler(int signal_number) {
  end_at(SIGSEGV, &leave_copy);
  end_at(SIGBUS, &leave_copy);
  end_at(SIGALRM, SIG_DFL);
  alarm(static_cast<unsigned>(kMostTime.count()) + 1);  // should this process end before its copy
  kill(getpid(), signal_number);  // returns when handled: it has no other thread
  _exit(0);
}

// Not fork(): libraries have handlers for fork(), which for example end the threads of a BLAS. That
// must not happen while the program goes on. Only a wait for exactly this child reports its end.
bool handled_in_copy(int signal_number) {
  const auto pid = static_cast<pid_t>(syscall(SYS_clone, 0, nullptr, nullptr, nullptr, nullptr));
  if (pid == 0) run_handler(signal_number);
  if (pid < 0) return false;
  const auto deadline = std::chrono::steady_clock::now() + kMostTime;
  int status = 0;
  for (;;) {
    const pid_t ended = waitpid(pid, &status, __WALL | WNOHANG);
    if (ended == pid) return WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (ended < 0 && errno != EINTR) return false;
    // Its handler may block every other signal.
    if (std::chrono::steady_clock::now() >= deadline) kill(pid, SIGKILL);
    std::this_thread::sleep_for(kLook);
  }
}

}  // namespace

std::string stack_snapshot(int signal_number, int fd) {
  for (int i = 0; i < kTries; ++i) {
    if (ftruncate(fd, 0) != 0) return {};
    if (!handled_in_copy(signal_number)) continue;
    std::string text(kMostBytes, '\0');
    const ssize_t count = pread(fd, text.data(), text.size(), 0);
    text.resize(count < 0 ? 0 : static_cast<std::size_t>(count));
    return text;
  }
  return {};
}

}  // namespace hvd
