// The connections of a rank at the start of a world: connected sockets if the world spans hosts,
// which these objects own, and the external data plane if there is one. A host is an index among
// the hosts of the world, or of the set.
#pragma once

#include <unistd.h>

#include <memory>
#include <utility>
#include <vector>

#include "backend/data_plane.h"
#include "backend/device_plane.h"
#include "transport/link.h"
#include "transport/seal.h"

namespace hvd {

// A connection between leaders, with the seals of its messages.
struct LeaderLink {
  int host = 0;
  int fd = -1;
  std::shared_ptr<LinkSeals> seals = nullptr;
};

// Of one process set.
struct SetLinks {
  SetLinks() = default;
  SetLinks(std::vector<LeaderLink> control, std::vector<DataLink> data)
      : control(std::move(control)), data(std::move(data)) {}
  SetLinks(SetLinks&& other) noexcept
      : control(std::exchange(other.control, {})),
        data(std::exchange(other.data, {})),
        data_plane(std::move(other.data_plane)) {}
  SetLinks& operator=(SetLinks&& other) noexcept {
    std::swap(control, other.control);
    std::swap(data, other.data);
    std::swap(data_plane, other.data_plane);
    return *this;
  }
  ~SetLinks() {
    for (const LeaderLink& link : control) close(link.fd);
    for (const DataLink& link : data) close(link.fd);
  }

  std::vector<LeaderLink> control;  // the links of the tree; leaders only
  std::vector<DataLink> data;
  std::shared_ptr<DataPlane> data_plane;  // external data plane; null: the engine moves the data
};

// Of the world.
struct Connections {
  std::vector<std::vector<int>> hosts;  // world ranks of each host; empty: there is one host
  std::vector<int> doorbells;           // see Presence
  SetLinks world;
  std::vector<LeaderLink> news;
  DevicePlane devices = {};
};

}  // namespace hvd
