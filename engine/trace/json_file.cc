#include "trace/json_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "core/error.h"

namespace hvd {

JsonFile::JsonFile(const std::string& path, std::string_view last, std::size_t max_bytes)
    : path_(path), tail_(std::string(last) + "\n]\n"), max_bytes_(max_bytes) {
  fd_ = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd_ < 0) throw system_error("opening " + path, errno);
  try {
    write("[\n" + tail_, 0);
  } catch (...) {
    close(fd_);
    throw;
  }
  begin_ = end_ = 2;
}

JsonFile::~JsonFile() {
  try {
    flush();
    close_up();
  } catch (const Error&) {
    // What is there is a document.
  }
  close(fd_);
}

bool JsonFile::add(std::string_view element) {
  if (is_full_ || element.size() + 2 > kPage) return !is_full_;
  std::size_t at = begin_ + unwritten_.size();
  const std::size_t room = kPage - at % kPage;
  const std::size_t padding = element.size() + 2 > room ? room : 0;
  if (at + padding + element.size() + kPage > max_bytes_) {
    is_full_ = true;
    return false;
  }
  unwritten_.append(padding, ' ');
  unwritten_.append(element).append(",\n");
  return true;
}

void JsonFile::flush() {
  if (unwritten_.empty()) return;
  if (is_broken_) throw Error(ErrorCode::kSystem, path_ + " cannot be written any more");
  try {
    if (begin_ + unwritten_.size() > end_) move_end(begin_ + unwritten_.size());
    write(unwritten_, begin_);
  } catch (const Error&) {
    is_broken_ = true;
    throw;
  }
  begin_ += unwritten_.size();
  unwritten_.clear();
}

void JsonFile::move_end(std::size_t wanted) {
  const std::size_t old_end = end_;
  const std::size_t step = std::min(kStep, std::max<std::size_t>(64 * 1024, wanted / 2));
  std::size_t end = wanted + step;
  // Within one page, so that it appears at once.
  if (kPage - end % kPage < tail_.size()) end = (end / kPage + 1) * kPage;
  const std::size_t behind = old_end + tail_.size();
  write(std::string(end - behind, ' '), behind);  // spaces may follow a document
  write(tail_, end);
  write(std::string(tail_.size(), ' '), old_end);
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

}  // namespace hvd
