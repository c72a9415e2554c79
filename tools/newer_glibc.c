// What GCC and its libstdc++ on a newer system want of glibc, for wheels that work with 2.28.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <sys/random.h>
#include <time.h>

#define HIDDEN __attribute__((visibility("hidden")))

// 2.32. Reference counts are always atomic: Horovod's processes have several threads anyway.
HIDDEN char __libc_single_threaded = 0;

// 2.36; for std::random_device.
HIDDEN unsigned arc4random(void) {
  unsigned value = 0;
  while (getentropy(&value, sizeof value) != 0) {
  }
  return value;
}

typedef int clockwait(pthread_cond_t*, pthread_mutex_t*, clockid_t, const struct timespec*);
static clockwait* of_this_glibc;

__attribute__((constructor)) static void find(void) {
  of_this_glibc = (clockwait*)dlsym(RTLD_DEFAULT, "pthread_cond_clockwait");
}

static const long kSecond = 1000000000;

// 2.30; for waits until a time of std::chrono::steady_clock. In an older glibc they follow the
// clock of the day, so they end early, which a waiter has to expect, before a change of it matters.
HIDDEN int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex,
                                  clockid_t clock, const struct timespec* until) {
  if (of_this_glibc != NULL) return of_this_glibc(condition, mutex, clock, until);
  struct timespec now;
  clock_gettime(clock, &now);
  long left = until->tv_sec - now.tv_sec > 1
                  ? kSecond
                  : (until->tv_sec - now.tv_sec) * kSecond + until->tv_nsec - now.tv_nsec;
  if (left <= 0) return ETIMEDOUT;
  const int is_last = left < kSecond;
  if (!is_last) left = kSecond;
  clock_gettime(CLOCK_REALTIME, &now);
  now.tv_nsec += left;
  now.tv_sec += now.tv_nsec / kSecond;
  now.tv_nsec %= kSecond;
  const int status = pthread_cond_timedwait(condition, mutex, &now);
  return status == ETIMEDOUT && !is_last ? 0 : status;
}
