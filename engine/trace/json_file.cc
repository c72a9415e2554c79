#include "trace/json_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "core/error.h"

namespace hvd {

namespace {

constexpr std::string_view kSeparator = ",\n";

// Fits into a processor's cache.
constexpr std::array<char, 16 * 1024> kSpaces = [] {
  std::array<char, 16 * 1024> spaces;
  spaces.fill(' ');
  return spaces;
}();

constexpr std::string_view kBegin = "[\n";

// Checks before a file is overwritten: it may be another file with the same name.
void check_is_ours(int fd, const std::string& path, std::string_view mark) {
  struct stat found{};
  if (fstat(fd, &found) != 0) throw system_error("looking at " + path, errno);
  if (!S_ISREG(found.st_mode)) throw Error(ErrorCode::kSystem, path + " is not a regular file");
  const std::string expected = std::string(kBegin).append(mark);
  std::string begin(expected.size(), '\0');
  const ssize_t count = pread(fd, begin.data(), begin.size(), 0);
  if (count < 0) throw system_error("reading " + path, errno);
  if (count > 0 && begin != expected) {
    throw Error(ErrorCode::kSystem,
                path + " holds something else and is left as it is; choose another name");
  }
}

}  // namespace

JsonFile::JsonFile(const std::string& path, std::string_view mark, std::string_view last,
                   std::size_t max_bytes)
    : path_(path),
      tail_(std::string(last) + "\n]\n"),
      max_bytes_(max_bytes),
      gathered_(kMostGathered + 3 * kPage) {  // padding, an element, and a page more, as promised
  fd_ = Descriptor(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0644));
  if (fd_ < 0) throw system_error("opening " + path, errno);
  check_is_ours(fd_, path, mark);
  if (ftruncate(fd_, 0) != 0) throw system_error("emptying " + path, errno);
  write(std::string(kBegin) + tail_, 0);
  begin_ = end_ = kBegin.size();
}

JsonFile::~JsonFile() {
  try {
    flush();
    close_up();
  } catch (const Error&) {
    // The file is a valid document in any case.
  }
}

char* JsonFile::begin_element(std::size_t bytes) {
  bytes += kSeparator.size();
  if (is_full_ || bytes > kPage) return nullptr;
  if (gathered_bytes_ > kMostGathered) flush();
  const std::size_t at = begin_ + gathered_bytes_;
  const std::size_t room = kPage - at % kPage;
  const std::size_t padding = bytes > room ? room : 0;
  if (at + padding + bytes + kPage > max_bytes_) {
    is_full_ = true;
    return nullptr;
  }
  std::memset(gathered_.data() + gathered_bytes_, ' ', padding);
  gathered_bytes_ += padding;
  return gathered_.data() + gathered_bytes_;
}

void JsonFile::end_element(char* end) {
  end = std::ranges::copy(kSeparator, end).out;
  gathered_bytes_ = static_cast<std::size_t>(end - gathered_.data());
}

void JsonFile::add(std::string_view element) {
  char* to = begin_element(element.size());
  if (to != nullptr) end_element(std::ranges::copy(element, to).out);
}

void JsonFile::flush() {
  if (gathered_bytes_ == 0) return;
  if (is_broken_) throw Error(ErrorCode::kSystem, path_ + " cannot be written any more");
  try {
    if (begin_ + gathered_bytes_ > end_) move_end(begin_ + gathered_bytes_);
    write({gathered_.data(), gathered_bytes_}, begin_);
  } catch (const Error&) {
    is_broken_ = true;
    throw;
  }
  begin_ += gathered_bytes_;
  gathered_bytes_ = 0;
}

void JsonFile::move_end(std::size_t wanted) {
  const std::size_t old_end = end_;
  const std::size_t step = std::min(kStep, std::max<std::size_t>(64 * 1024, wanted / 2));
  std::size_t end = wanted + step;
  // Within one page, so that it is written in one step.
  if (kPage - end % kPage < tail_.size()) end = (end / kPage + 1) * kPage;
  const std::size_t behind = old_end + tail_.size();
  write_spaces(behind, end);  // spaces may follow a document
  write(tail_, end);
  write_spaces(old_end, behind);
  end_ = end;
}

void JsonFile::close_up() {
  if (is_broken_ || begin_ == end_) return;
  write(tail_ + std::string(std::min(end_ - begin_, kPage), ' '), begin_);
  if (ftruncate(fd_, static_cast<off_t>(begin_ + tail_.size())) != 0) {
    throw system_error("closing " + path_, errno);
  }
}

void JsonFile::write(std::string_view text, std::size_t at) const {
  while (!text.empty()) {
    const ssize_t count = pwrite(fd_, text.data(), text.size(), static_cast<off_t>(at));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw system_error("writing " + path_, errno);
    text.remove_prefix(static_cast<std::size_t>(count));
    at += static_cast<std::size_t>(count);
  }
}

// As few calls as possible, since each call has a fixed cost.
void JsonFile::write_spaces(std::size_t from, std::size_t end) const {
  while (from < end) {
    std::array<iovec, 64> parts;
    std::size_t count = 0;
    for (std::size_t at = from; at < end && count < parts.size(); ++count) {
      const std::size_t bytes = std::min(kSpaces.size(), end - at);
      parts[count] = {.iov_base = const_cast<char*>(kSpaces.data()), .iov_len = bytes};
      at += bytes;
    }
    const ssize_t written =
        pwritev(fd_, parts.data(), static_cast<int>(count), static_cast<off_t>(from));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw system_error("writing " + path_, errno);
    from += static_cast<std::size_t>(written);
  }
}

}  // namespace hvd
