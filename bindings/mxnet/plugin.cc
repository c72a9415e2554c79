// The engine as operations of MXNet's engine: a library that horovod.mxnet opens.
#include <exception>
#include <memory>
#include <string>

#include "bindings/mxnet/api.h"
#include "bindings/mxnet/job.h"

namespace hvd::mxnet {

namespace {

// Both outlive MXNet's threads: one is never freed, the other belongs to the process.
struct Plugin {
  Api api;
  EnginePort& port;
};

using SharedResults = std::shared_ptr<Results>;

// What went wrong in the last call of this thread that returned -1.
std::string& last_error() {
  thread_local std::string text;
  return text;
}

template <typename Body>
int guarded(Body body) {
  try {
    body();
    return 0;
  } catch (const std::exception& error) {
    last_error() = error.what();
    return -1;
  }
}

}  // namespace
}  // namespace hvd::mxnet

using hvd::mxnet::Array;
using hvd::mxnet::guarded;
using hvd::mxnet::Job;
using hvd::mxnet::Plugin;
using hvd::mxnet::SharedResults;

#define HOROVOD_EXPORT extern "C" [[gnu::visibility("default")]]

HOROVOD_EXPORT const char* horovod_mxnet_last_error() { return hvd::mxnet::last_error().c_str(); }

// `library`: MXNet's, as dlopen returned it. `port` outlives the process' use of MXNet.
HOROVOD_EXPORT int horovod_mxnet_attach(void* library, hvd::EnginePort* port, Plugin** plugin) {
  return guarded([&] { *plugin = new Plugin{.api = hvd::mxnet::Api(library), .port = *port}; });
}

// Gives a collective to MXNet's engine. `results`, null where the call has outputs, is to be given
// back to horovod_mxnet_release.
HOROVOD_EXPORT int horovod_mxnet_push(Plugin* plugin, const horovod_mxnet_call* call,
                                      SharedResults** results) {
  return guarded([&] {
    const auto job = std::make_shared<Job>(plugin->api, plugin->port, *call);
    auto shared = job->results() ? std::make_unique<SharedResults>(job->results()) : nullptr;
    Job::push(job, *call);
    *results = shared.release();
  });
}

// A result of an operation that is done, as a new array.
HOROVOD_EXPORT int horovod_mxnet_take(Plugin* plugin, SharedResults* results, int index,
                                      Array* array) {
  return guarded([&] { *array = (*results)->take(plugin->api, static_cast<std::size_t>(index)); });
}

HOROVOD_EXPORT void horovod_mxnet_release(SharedResults* results) { delete results; }
