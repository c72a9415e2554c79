// A library that is loaded while the program runs, so that the engine needs none of it to be built
// or to start.
#pragma once

#include <string>

namespace hvd {

// Whether a library that this process does not have yet is loaded, or is an error.
enum class Loading { kIfNeeded, kNever };

class SharedLibrary {
 public:
  // `path`: a file, or a name that the system's loader finds. Throws Error(kSystem) with the
  // loader's own text.
  explicit SharedLibrary(const std::string& path, Loading loading = Loading::kIfNeeded);
  ~SharedLibrary();
  SharedLibrary(const SharedLibrary&) = delete;
  SharedLibrary& operator=(const SharedLibrary&) = delete;

  // Throws Error(kSystem) where the library has no such function: it is too old.
  template <typename Function>
  void find(const char* name, Function*& function) const {
    function = reinterpret_cast<Function*>(symbol(name));
  }
  const std::string& path() const { return path_; }

 private:
  void* symbol(const char* name) const;

  const std::string path_;
  void* handle_;
};

}  // namespace hvd
