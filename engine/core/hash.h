// 64-bit mixing hash for names and request signatures. Peers compare the values, so every process
// of a job must run the same function; it is not meant to resist an attacker (peers are
// authenticated).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace hvd {

constexpr std::uint64_t mix64(std::uint64_t x) {
  // Finaliser of splitmix64 (Steele, Lea, Flood 2014).
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9ULL;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

constexpr std::uint64_t hash_word(std::uint64_t word, std::uint64_t state) {
  return mix64(state ^ word) + 0x9e3779b97f4a7c15ULL;
}

inline std::uint64_t hash_bytes(const void* data, std::size_t size_bytes, std::uint64_t seed) {
  const auto* at = static_cast<const unsigned char*>(data);
  std::uint64_t state = mix64(seed + size_bytes);
  for (; size_bytes >= 8; size_bytes -= 8, at += 8) {
    std::uint64_t word;
    std::memcpy(&word, at, 8);
    state = hash_word(word, state);
  }
  std::uint64_t tail = 0;
  std::memcpy(&tail, at, size_bytes);
  return mix64(state ^ tail);
}

}  // namespace hvd
