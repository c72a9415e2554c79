// Seals, and messages in sealed records: what is altered, repeated, moved or left out ends the
// link.
#include "transport/seal.h"

#include <doctest/doctest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <random>

#include "core/error.h"
#include "seals.h"
#include "transport/message_link.h"

namespace hvd {
namespace {

using test::crypto_library;
using test::numbered_key;
using Bytes = std::vector<std::byte>;

Bytes numbered(std::size_t size_bytes) {
  Bytes bytes(size_bytes);
  for (std::size_t i = 0; i < size_bytes; ++i) bytes[i] = static_cast<std::byte>(i * 7 % 251);
  return bytes;
}

struct Record {
  Bytes covered;
  Bytes encrypted;
  Tag tag{};
};

Record sealed(Sealer& sealer, const Bytes& covered, const Bytes& text) {
  Record record{.covered = covered, .encrypted = Bytes(text.size())};
  sealer.begin();
  sealer.cover(covered.data(), covered.size());
  sealer.encrypt(text.data(), record.encrypted.data(), text.size());
  sealer.end(record.tag.data());
  return record;
}

std::optional<Bytes> opened(Opener& opener, const Record& record) {
  Bytes text(record.encrypted.size());
  opener.begin();
  opener.cover(record.covered.data(), record.covered.size());
  opener.decrypt(record.encrypted.data(), text.data(), text.size());
  if (!opener.end(record.tag.data())) return std::nullopt;
  return text;
}

std::optional<Bytes> opened_as_first(const Record& record, int key = 1) {
  Opener opener(crypto_library(), numbered_key(key));
  return opened(opener, record);
}

TEST_CASE("seal: what was sealed opens, in its order and in other pieces") {
  Sealer sealer(crypto_library(), numbered_key(1));
  Opener opener(crypto_library(), numbered_key(1));
  const Bytes text = numbered(1000);
  for (int i = 0; i < 3; ++i) CHECK(opened(opener, sealed(sealer, numbered(5), text)) == text);
  const Record record = sealed(sealer, {}, text);
  Bytes parts(text.size());
  opener.begin();
  for (std::size_t at = 0; at < text.size(); at += 7) {
    const std::size_t length = std::min<std::size_t>(7, text.size() - at);
    opener.decrypt(record.encrypted.data() + at, parts.data() + at, length);
  }
  CHECK(opener.end(record.tag.data()));
  CHECK(parts == text);
}

// AES-256-GCM, test case 14 of its authors' paper: a zero key, a zero nonce, a zero block.
TEST_CASE("seal: the first record is what the standard says") {
  constexpr Key kZero{};
  Sealer sealer(crypto_library(), kZero);
  const Record record = sealed(sealer, {}, Bytes(16));
  const auto hex = [](std::span<const std::byte> bytes) {
    std::string text;
    for (const std::byte byte : bytes) {
      constexpr char kDigits[] = "0123456789abcdef";
      text += kDigits[static_cast<unsigned>(byte) >> 4];
      text += kDigits[static_cast<unsigned>(byte) & 15];
    }
    return text;
  };
  CHECK(hex(record.encrypted) == "cea7403d4d606b6e074ec5d3baf39d18");
  CHECK(hex(record.tag) == "d0d1c8a799996bf0265b98b5d48ab919");
}

TEST_CASE("seal: no record opens with any bit flipped, out of place, or under another key") {
  Sealer sealer(crypto_library(), numbered_key(1));
  const Record first = sealed(sealer, numbered(4), numbered(20));
  const Record second = sealed(sealer, numbered(4), numbered(20));
  CHECK(opened_as_first(first).has_value());
  const auto flip_all = [&](auto& bytes, Record& record) {
    for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
      bytes[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
      CHECK(!opened_as_first(record));
      bytes[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    }
  };
  Record flipped = first;
  flip_all(flipped.covered, flipped);
  flip_all(flipped.encrypted, flipped);
  flip_all(flipped.tag, flipped);
  CHECK(opened_as_first(flipped).has_value());
  CHECK(!opened_as_first(second));    // out of order
  CHECK(!opened_as_first(first, 2));  // another key: another link, or the other direction
  Opener opener(crypto_library(), numbered_key(1));
  CHECK(opened(opener, first).has_value());
  CHECK(!opened(opener, first));  // repeated
}

TEST_CASE("seal: equal records look different, and numbers never come again") {
  Sealer sealer(crypto_library(), numbered_key(1));
  const Record first = sealed(sealer, {}, numbered(20));
  CHECK(first.encrypted != sealed(sealer, {}, numbered(20)).encrypted);
  constexpr std::uint64_t kLast = std::numeric_limits<std::uint64_t>::max();
  Sealer old(crypto_library(), numbered_key(1), kLast - 1);
  old.begin();
  CHECK_THROWS_WITH_AS(old.begin(), doctest::Contains("used up the record numbers of its key"),
                       Error);
  Opener old_opener(crypto_library(), numbered_key(1), kLast);
  CHECK_THROWS_AS(old_opener.begin(), Error);
}

TEST_CASE("seal: without a libcrypto the error says what was looked for") {
  const std::vector<std::string> nowhere{"libnothing.so.3", "/no/libcrypto.so.1.1"};
  CHECK_THROWS_WITH_AS(find_crypto_library(nowhere), doctest::Contains("libnothing.so.3"), Error);
  CHECK_THROWS_WITH_AS(find_crypto_library(nowhere), doctest::Contains("/no/libcrypto"), Error);
  const std::vector<std::string> other{"libc.so.6"};  // this process has it, and it is no libcrypto
  CHECK_THROWS_WITH_AS(find_crypto_library(other), doctest::Contains("no function OpenSSL_version"),
                       Error);
  CHECK(!crypto_library()->version().empty());
  CHECK(time_record(crypto_library(), 100, true, 3) > 0);
  CHECK(time_record(crypto_library(), 100, false, 3) > 0);
}

// One end is a link, the other one a socket in the hands of an attacker.
struct Path {
  Path() {
    int fds[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0);
    far_end = fds[1];
    const auto [here, there] = test::seals_pair();
    link.emplace(fds[0], 3, here, "control link");
    seals = there;
  }
  ~Path() { close(far_end); }
  Path(const Path&) = delete;
  Path& operator=(const Path&) = delete;

  // What the link sends.
  Bytes caught() const {
    Bytes bytes(1 << 20);
    const ssize_t count = recv(far_end, bytes.data(), bytes.size(), MSG_DONTWAIT);
    bytes.resize(count < 0 ? 0 : static_cast<std::size_t>(count));
    return bytes;
  }
  void give(const Bytes& bytes) const {
    REQUIRE(send(far_end, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
  }
  std::vector<Bytes> heard() {
    std::vector<Bytes> messages;
    link->receive([&](auto message) { messages.emplace_back(message.begin(), message.end()); });
    return messages;
  }

  int far_end = -1;
  std::optional<MessageLink> link;
  std::shared_ptr<LinkSeals> seals;  // the other end's
};

// What the other end of `path` would send for these messages, one after the other.
std::vector<Bytes> records_of(const Path& path, const std::vector<Bytes>& messages) {
  int fds[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0);
  MessageLink sender(fds[0], 4, path.seals, "control link");
  std::vector<Bytes> records;
  for (const Bytes& message : messages) {
    sender.post(message);
    Bytes& record = records.emplace_back(1 << 20);
    record.resize(static_cast<std::size_t>(recv(fds[1], record.data(), record.size(), 0)));
  }
  close(fds[1]);
  return records;
}

void check_altered(Path& path) {
  CHECK(path.link->is_altered());
  CHECK(path.link->loss() ==
        "a record on the control link from it was altered, repeated or left out on its way");
  std::vector<pollfd> polls;
  path.link->add_poll(polls);
  CHECK(polls.empty());
}

TEST_CASE("message link: messages of any length arrive, whatever the pieces") {
  std::mt19937 random(1);
  Path path;
  std::vector<Bytes> messages;
  for (const std::size_t size : {0, 1, 27, 28, 29, 100, 5000, 70'000}) {
    messages.push_back(numbered(size));
  }
  Bytes stream;
  for (const Bytes& record : records_of(path, messages)) {
    stream.insert(stream.end(), record.begin(), record.end());
  }
  std::vector<Bytes> heard;
  for (std::size_t at = 0; at < stream.size();) {
    const std::size_t length = std::min<std::size_t>(1 + random() % 9000, stream.size() - at);
    path.give({stream.begin() + static_cast<std::ptrdiff_t>(at),
               stream.begin() + static_cast<std::ptrdiff_t>(at + length)});
    at += length;
    for (Bytes& message : path.heard()) heard.push_back(std::move(message));
  }
  CHECK(heard == messages);
  CHECK(path.link->loss().empty());
}

TEST_CASE("message link: a message is nowhere to be seen in what travels") {
  Path path;
  const Bytes message = numbered(200);
  path.link->post(message);
  const Bytes caught = path.caught();
  CHECK(caught.size() == 48 + 172 + 16);
  for (std::size_t at = 0; at + 8 <= message.size(); at += 8) {
    const auto part = std::span(message).subspan(at, 8);
    CHECK(std::ranges::search(caught, part).empty());
  }
}

TEST_CASE("message link: any flipped bit ends it at once, and nothing of it is heard") {
  const std::size_t sizes[] = {9, 40};
  for (const std::size_t size : sizes) {
    const std::size_t record_bytes = size <= 28 ? 48 : 48 + size - 28 + kTagBytes;
    for (std::size_t bit = 0; bit < record_bytes * 8; ++bit) {
      Path path;
      Bytes record = records_of(path, {numbered(size)}).front();
      REQUIRE(record.size() == record_bytes);
      record[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
      path.give(record);
      REQUIRE(path.heard().empty());
      REQUIRE(path.link->is_altered());
    }
  }
}

TEST_CASE("message link: repeated, moved, left out, reflected and foreign records end it") {
  const std::vector<Bytes> messages{numbered(9), numbered(60), numbered(12)};
  const auto check = [&](const std::vector<int>& order, std::size_t good) {
    Path path;
    const std::vector<Bytes> records = records_of(path, messages);
    for (const int index : order) path.give(records[static_cast<std::size_t>(index)]);
    CHECK(path.heard().size() == good);
    check_altered(path);
    path.give(records.back());
    CHECK(path.heard().empty());  // it stays so
  };
  check({0, 0}, 1);
  check({0, 1, 1}, 2);
  check({1, 0}, 0);
  check({0, 2}, 1);
  SUBCASE("what it sent itself") {
    Path path;
    path.link->post(messages[0]);
    path.give(path.caught());
    CHECK(path.heard().empty());
    check_altered(path);
  }
  SUBCASE("of another link") {
    Path path;
    const Path other;
    path.give(records_of(other, messages)[0]);
    CHECK(path.heard().empty());
    check_altered(path);
  }
}

TEST_CASE("message link: a record cut short is a broken link, and no message") {
  Path path;
  Bytes record = records_of(path, {numbered(40)}).front();
  record.pop_back();
  path.give(record);
  CHECK(path.heard().empty());
  CHECK(path.link->loss().empty());
  shutdown(path.far_end, SHUT_WR);
  CHECK(path.heard().empty());
  CHECK(path.link->loss() == "it closed the connection within a message");
  CHECK(!path.link->is_altered());
}

TEST_CASE(
    "message link: a peer that knows the key and claims too much is refused before memory is "
    "taken") {
  Path path;
  Bytes first(32);
  const std::uint32_t size_bytes = 0xffffffff;
  std::memcpy(first.data(), &size_bytes, sizeof size_bytes);
  path.seals->sealer.begin();
  path.seals->sealer.encrypt(first.data(), first.data(), first.size());
  first.resize(48);
  path.seals->sealer.end(first.data() + 32);
  path.give(first);
  CHECK(path.heard().empty());
  CHECK(path.link->loss() == "it sent a message of 4294967295 bytes on the control link");
}

}  // namespace
}  // namespace hvd
