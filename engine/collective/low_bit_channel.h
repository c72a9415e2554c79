// A channel's sums over the hosts with tensors in low-bit formats (kernels/low_bit.h).
//
// The partial sums of every host are coded, its own too; the owner of a part adds up what the codes
// stand for in float32, in the order of the hosts, and codes the sum. All hosts decode that, its
// own too, and apply the factors that belong after the sum. So all ranks get the same bits, and
// neither the owner of a part nor its place changes them. Views that travel exactly may be between
// the others; they get the bits of ExactChannel.
//
// Every chunk is coded into memory of this channel, which is used again kCodedChunks chunks later.
//
// Errors, in units of the tensor: what is missing in the coded partial sums is written by the rank
// that coded them, and what is missing in a sum is added by the rank that coded that. Over all
// ranks the errors are the sum of the tensors minus the result before its factors.
#pragma once

#include "collective/channel_reduction.h"
#include "kernels/low_bit.h"

namespace hvd {

class LowBitChannel final : public ChannelReduction {
 public:
  LowBitChannel(const HostMap& map, Links& links, int channel)
      : ChannelReduction(map, links, channel),
        addends_(map.hosts.size()),
        places_(map.hosts.size()) {}

 private:
  static constexpr std::uint32_t kCodedChunks = 4;
  static_assert(kCodedChunks <= kPlaces && kCodedChunks >= kSlots);

  // Coded bytes by chunk.
  struct CodedPlace {
    std::vector<std::byte> bytes;
    std::size_t chunk_bytes = 0;

    void prepare(std::size_t bytes_of_chunk);
    std::byte* at(std::uint32_t chunk) { return bytes.data() + chunk % kCodedChunks * chunk_bytes; }
  };
  // Of a host.
  struct Places {
    CodedPlace sent_part;      // this host's partial sums for it; own host: for this rank
    CodedPlace received_part;  // its partial sums for this rank
    CodedPlace result;         // the sums that its owner has coded
  };

  void prepare() override;
  bool may_send_parts(std::uint32_t chunk) const override;
  bool may_receive_result(const Source& source, std::uint32_t chunk) const override;
  bool may_reduce(std::uint32_t chunk) const override;
  void send_parts(std::uint32_t chunk) override;
  void send_results(std::uint32_t chunk) override;
  void receive_part(Source& source, std::uint32_t chunk) override;
  void receive_result(Source& source, std::uint32_t chunk) override;
  void reduce_part(std::uint32_t chunk) override;
  void take_result(Source& source, std::uint32_t chunk) override {
    write_result(source.host, chunk);
  }

  Places& places(int host) { return places_[static_cast<std::size_t>(host)]; }
  std::size_t link_bytes(std::uint32_t chunk, int host) const;
  void code_part(std::uint32_t chunk, int host);
  void add_up(const Piece& piece, std::uint32_t chunk, std::size_t at);
  void write_result(int host, std::uint32_t chunk);

  std::vector<const std::byte*> addends_;  // by host
  std::vector<Places> places_;             // by host
};

}  // namespace hvd
