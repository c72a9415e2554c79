#include "trace/json_file.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"

namespace hvd {
namespace {

constexpr std::size_t kPlenty = 1U << 30;

class TemporaryPath {
 public:
  TemporaryPath() {
    const int fd = mkstemp(path_);
    REQUIRE(fd >= 0);
    close(fd);
  }
  ~TemporaryPath() { unlink(path_); }
  operator std::string() const { return path_; }
  std::string content() const {
    std::ifstream file(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

 private:
  char path_[32] = "/tmp/json_file_test.XXXXXX";
};

// The elements of a file, which must be a whole document but may hold spaces anywhere.
std::vector<std::string> elements_of(const std::string& content) {
  std::vector<std::string> elements;
  std::string current;
  REQUIRE(content.front() == '[');
  std::size_t at = 1;
  for (; at < content.size() && content[at] != ']'; ++at) {
    const char character = content[at];
    if (character == ',') {
      elements.push_back(std::exchange(current, ""));
    } else if (character != ' ' && character != '\n') {
      current += character;
    }
  }
  elements.push_back(current);
  REQUIRE(at < content.size());
  CHECK(content.find_first_not_of(" \n", at + 1) == std::string::npos);
  return elements;
}

TEST_CASE("a file is a whole document after every flush, whatever came before") {
  const TemporaryPath path;
  std::mt19937 random(1);
  std::vector<std::string> added;
  {
    JsonFile file(path, "", "9", kPlenty);
    for (int round = 0; round < 60; ++round) {
      for (unsigned i = random() % 50; i > 0; --i) {
        added.push_back(std::string(1 + random() % 900, '1'));
        file.add(added.back());
      }
      file.flush();
      std::vector<std::string> expected = added;
      expected.emplace_back("9");
      REQUIRE(elements_of(path.content()) == expected);
    }
  }
  std::vector<std::string> expected = added;
  expected.emplace_back("9");
  const std::string content = path.content();
  CHECK(elements_of(content) == expected);
  CHECK(content.ends_with("9\n]\n"));  // no spaces are left behind it
}

TEST_CASE("no element crosses the border of a page, so a write that is cut off leaves a document") {
  const TemporaryPath path;
  JsonFile file(path, "", "9", kPlenty);
  for (int i = 0; i < 100; ++i) file.add(std::string(300, '1'));
  file.flush();
  const std::string content = path.content();
  for (std::size_t border = JsonFile::kPage; border < content.size(); border += JsonFile::kPage) {
    CHECK((content[border - 1] == ' ' || content[border - 1] == '\n'));
  }
  std::string cut_off = content;  // as if the last pages of the write had not come
  for (std::size_t pages = 1; pages <= 5; ++pages) {
    const std::size_t from = pages * JsonFile::kPage;
    std::fill_n(cut_off.begin() + static_cast<std::ptrdiff_t>(from), 34 * 1024 - from, ' ');
    CHECK(elements_of(cut_off).size() == pages * 13 + 1);
    cut_off = content;
  }
}

TEST_CASE("much is written without a flush") {
  const TemporaryPath path;
  JsonFile file(path, "", "9", kPlenty);
  for (int i = 0; i < 10'000; ++i) file.add(std::string(100, '1'));
  CHECK(elements_of(path.content()).size() > 10'000 - 2 * JsonFile::kMostGathered / 100);
}

TEST_CASE("it grows no larger than it may") {
  const TemporaryPath path;
  {
    JsonFile file(path, "", "9", 10'000);
    while (!file.is_full()) {
      file.add(std::string(100, '1'));
      file.flush();
    }
    CHECK(file.begin_element(1) == nullptr);
  }
  const std::string content = path.content();
  CHECK(content.size() <= 10'000);
  CHECK(elements_of(content).size() > 50);
}

TEST_CASE("what cannot be written is an error, and no file is one at once") {
  CHECK_THROWS_AS(JsonFile("/nowhere/at/all", "", "9", kPlenty), Error);
  CHECK_THROWS_AS(JsonFile("/dev/full", "", "9", kPlenty), Error);
}

}  // namespace
}  // namespace hvd
