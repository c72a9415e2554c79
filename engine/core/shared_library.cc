#include "core/shared_library.h"

#include <dlfcn.h>

#include "core/error.h"

namespace hvd {

// The library is never unloaded: drivers keep threads and handlers of their own.
SharedLibrary::SharedLibrary(const std::string& path, Loading loading)
    : path_(path),
      handle_(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE |
                                       (loading == Loading::kNever ? RTLD_NOLOAD : 0))) {
  if (handle_ != nullptr) return;
  const char* const reason = dlerror();  // null if it is only not loaded
  throw Error(ErrorCode::kSystem, reason != nullptr ? reason : path + " is not loaded");
}

SharedLibrary::~SharedLibrary() { dlclose(handle_); }

void* SharedLibrary::symbol(const char* name) const {
  void* address = dlsym(handle_, name);
  if (address == nullptr) {
    throw Error(ErrorCode::kSystem, path_ + " has no function " + name + "; it is too old");
  }
  return address;
}

}  // namespace hvd
