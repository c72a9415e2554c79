#include "runtime/doorbells.h"

namespace hvd {

namespace {

std::uint64_t pack(int set, const PeerWait& wait) {
  return 1 + (static_cast<std::uint64_t>(set) << 32) +
         (static_cast<std::uint64_t>(wait.rank) << 8) +
         (static_cast<std::uint64_t>(wait.counter) << 1);
}

PeerWait unpack(std::uint64_t packed) {
  return {.rank = static_cast<int>((packed >> 8) & 0xffffff),
          .counter = static_cast<Counter>((packed >> 1) & 3),
          .target = 0};
}

}  // namespace

void Doorbells::wake_holder() {
  const std::uint64_t packed = sleeping_on_.load();
  if (packed == kBackgroundDoorbell) {
    ring_background();
  } else if (packed != kNothing) {
    if (ProcessSetContext* context = sets_.find(static_cast<int>(packed >> 32)))
      context->peers.wake(unpack(packed));
  }
  presence_.ring_own(presence_.helper_doorbell());
}

void Doorbells::wake_everyone() {
  presence_.ring_all_doorbells();
  sets_.for_each([](ProcessSetContext& context) { context.peers.wake_sleepers(); });
}

bool Doorbells::ring(const Waits& waits) const {
  bool was_rung = true;
  for (const auto& [context, wait] : waits) {
    was_rung &= presence_.ring(context->local[static_cast<std::size_t>(wait.rank)]);
  }
  return was_rung;
}

void Doorbells::sleep_on(const ProcessSetContext& context, const PeerWait& wait) {
  sleeping_on_.store(pack(context.id, wait));
}

void Doorbells::sleep_on_doorbell(bool is_helper) {
  if (!is_helper) {
    sleeping_on_.store(kBackgroundDoorbell);
    policy_.store(WakePolicy::kNapping);  // a thread that makes something ready must ring
  }
  presence_.set_wait_state(is_helper ? WaitState::kHelperAsleep : WaitState::kBackground);
}

int Doorbells::sleeping_set() const {
  const std::uint64_t packed = sleeping_on_.load();
  return packed == kNothing || packed == kBackgroundDoorbell ? -1 : static_cast<int>(packed >> 32);
}

bool Doorbells::is_left_to_background() const {
  const WaitState wait_state = presence_.wait_state(presence_.rank());
  return wait_state == WaitState::kBackground || wait_state == WaitState::kExpectant;
}

}  // namespace hvd
