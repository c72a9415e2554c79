// The configuration of tracing when a world begins.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/log.h"
#include "runtime/news.h"
#include "transport/shared_space.h"

namespace hvd {

struct TraceConfig {
  std::uint32_t events = 1U << 16;  // that are kept; 0: no recorder
  // The folder for files; empty: no files.
  std::string folder;
  bool is_chosen_folder = false;
  std::string job = "job";  // the folder in it
  int generation = 1;       // of the world in this process, part of a file's name
  // The text of a file in the job's folder while the world lives. Empty: there is no such file,
  // tools cannot ask for recordings, and none is written at a regular end.
  std::string presence;
  std::string world;  // a JSON object for every file
  // How to get Python's stacks without its lock: the signal writes them to the file.
  int stack_signal = 0;  // 0: not at all
  int stack_fd = -1;
  std::string timeline_path;  // empty: not from the start
  bool timeline_mark_cycles = false;
  std::size_t timeline_max_bytes = 1U << 30;
  std::string data_plane = "native";
};

struct TracePlace {
  int rank = 0;
  std::vector<int> local;               // ranks of this host
  std::map<int, int> pids;              // of those that are known, by rank
  std::vector<std::string> rank_names;  // of the world
  LogConfig log;

  std::string name_of(int of) const {
    const auto index = static_cast<std::size_t>(of);
    return index < rank_names.size() ? rank_names[index] : "rank " + std::to_string(of);
  }
};

// The recorder's memory of a rank of this host.
using TraceMemory = std::function<std::shared_ptr<Region>(int rank)>;

// Sends a note to another host's leader; false where it cannot.
using SendNote = std::function<bool(int leader, NoteKind kind, int rank, const std::string& text)>;

}  // namespace hvd
