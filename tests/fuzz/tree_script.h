// What happens to one host of the tree, as bytes: messages of its neighbours, and what its own
// ranks do. Recorded from real hosts, played to a host alone.
//
//   0x00-0x3f  a message of neighbour (byte modulo their number): length in two bytes, its bytes
//   0x40-0x5f  the ranks here submit operation (byte modulo kNames)
//   0x60-0x6f  a rank here joins
//   0x70-0x7f  the leader here asks whether a rank above has submitted operation (as before)
//   any other  the ranks here run what is decided
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace hvd::fuzz {

using Bytes = std::vector<std::byte>;

// The error that ended it; empty for none.
std::string play(int host, std::span<const std::byte> script);

// Real ones of that host: steady rounds of all operations, disagreement, ranks that join.
std::vector<Bytes> record(int host);

// Where messages lie in a script, without their lengths.
std::vector<std::pair<std::size_t, std::size_t>> messages_in(std::span<const std::byte> script);

}  // namespace hvd::fuzz
