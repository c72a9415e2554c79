// A library that is loaded while the program runs. The engine is built and starts without it.
#pragma once

#include <string>

namespace hvd {

// What happens if this process has not loaded the library yet: kIfNeeded loads it, kNever throws.
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

// A function of such a library, found when this is made. Throws as SharedLibrary::find().
template <typename Result, typename... Parameters>
struct LibraryFunction {
  LibraryFunction(const SharedLibrary& library, const char* function) : name(function) {
    library.find(name, call);
  }
  Result operator()(Parameters... arguments) const { return call(arguments...); }

  const char* name;
  Result (*call)(Parameters...);
};

}  // namespace hvd
