// What the fuzzers run, without Clang: each target's seeds, what they once found, and many changes
// of the seeds by a rule.
#include <doctest/doctest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "targets.h"

namespace hvd::fuzz {
namespace {

Bytes read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

TEST_CASE("fuzz: what the fuzzers once found is harmless now") {
  for (const Target& target : targets()) {
    const auto folder = std::filesystem::path(FUZZ_CORPUS) / target.name;
    if (!std::filesystem::exists(folder)) continue;
    for (const auto& file : std::filesystem::directory_iterator(folder)) {
      INFO(file.path().string());
      target.run(read_file(file.path()));
    }
  }
}

TEST_CASE("fuzz: seeds, cut anywhere and with any byte changed, are refused or harmless") {
  for (const Target& target : targets()) {
    if (target.name.starts_with("tree")) continue;  // hostile_peer_test.cc
    for (const Bytes& seed : target.seeds()) {
      target.run(seed);
      const std::size_t step = 1 + seed.size() / 100;
      for (std::size_t at = 0; at < seed.size(); at += step) {
        target.run(std::span(seed).first(at));
        Bytes changed = seed;
        changed[at] ^= std::byte{0x80};
        target.run(changed);
        changed[at] = std::byte{0xff};
        target.run(changed);
      }
    }
  }
}

}  // namespace
}  // namespace hvd::fuzz
