#include "runtime/link_formats.h"

#include <algorithm>

namespace hvd {

namespace {

struct Objection {
  std::string needed;
  std::string found;
};

// Why the reduction cannot have a low-bit format.
std::optional<Objection> objection_to(const Request& request, bool is_engines) {
  if (static_cast<int>(request.format) >= kLinkFormatCount) {
    return Objection{"a newer engine", "none that knows it"};
  }
  if (request.kind != Kind::kAllreduce) return Objection{"an allreduce", name_of(request.kind)};
  if (!has_low_bits(request.dtype)) return Objection{kLowBitDtypes, name_of(request.dtype)};
  if (request.op != ReduceOp::kSum && request.op != ReduceOp::kAverage) {
    return Objection{"op Sum or Average", name_of(request.op)};
  }
  if (request.memory != Memory::kHost) {
    return Objection{"a tensor in host memory", name_of(request.memory)};
  }
  if (!is_engines) return Objection{"the native data plane", "another (HOROVOD_CPU_OPERATIONS)"};
  return std::nullopt;
}

char lower(char letter) {
  return letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter - 'A' + 'a') : letter;
}

bool has_part(std::string_view name, std::string_view part) {
  const auto is_same = [](char one, char other) { return lower(one) == lower(other); };
  return !std::ranges::search(name, part, is_same).empty();
}

}  // namespace

LinkFormat LinkFormats::of(const Request& request, std::string_view name, bool is_engines) const {
  const LinkFormat asked = request.format == LinkFormat::kAsSet ? as_set : request.format;
  if (!may_be_low_bit(asked) || is_exact(name, request.element_count())) return LinkFormat::kExact;
  return objection_to(request, is_engines) ? LinkFormat::kExact : asked;
}

bool LinkFormats::is_exact(std::string_view name, std::uint64_t elements) const {
  return elements < least_elements ||
         std::ranges::any_of(exact_parts, [&](const auto& part) { return has_part(name, part); });
}

std::optional<std::string> format_refusal(const Request& request, bool is_engines) {
  if (!may_be_low_bit(request.format)) return std::nullopt;
  const auto objection = objection_to(request, is_engines);
  if (!objection) return std::nullopt;
  return "compression=" + std::string(name_of(request.format)) + " needs " + objection->needed +
         ", found " + objection->found;
}

}  // namespace hvd
