#include "runtime/submitter.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace hvd {

namespace {

Numbering numbering_of(const Submission& submission) {
  if (!submission.name.empty()) return Numbering::kNone;
  return submission.title.empty() ? Numbering::kOfKind : Numbering::kOfSet;
}

// "allreduce 'x'", or "allreduce" where the name is a running number.
std::string title_of(const Submission& submission) {
  if (numbering_of(submission) == Numbering::kOfSet) return std::string(submission.title);
  const Request& request = submission.requests.front();
  return submission.name.empty() ? name_of(request) : title_of(submission.name, request);
}

// Of one of its tensors; empty where it is not known.
std::string_view tensor_name(const Submission& submission, std::size_t position) {
  if (!submission.member_names.empty()) return submission.member_names[position];
  return submission.requests.front().is_grouped ? std::string_view{} : submission.name;
}

}  // namespace

Submitter::Submitter(const CommonParts& common, const DebugChecks& debug)
    : CommonParts(common), debug_(debug) {}

Submitted Submitter::submit(int set, std::span<const Submission> submissions, Intent intent,
                            HandleTable::Continuation then) {
  const std::lock_guard guard(lock_.mutex);
  if (results_.error()) {
    if (submissions.empty()) throw *results_.error();
    throw results_.error()->of(title_of(submissions.front()));
  }
  Submitted submitted{.context = &sets_.context_of(set, [&] {
    return submissions.empty() ? "submit" : name_of(submissions.front().requests.front());
  })};
  entries_.clear();
  for (const Submission& submission : submissions) {
    entries_.push_back(&prepare(*submitted.context, submission));
  }
  refuse_duplicates();
  const bool is_for_gpu =
      intent != Intent::kWait && std::ranges::any_of(submissions, [](const Submission& each) {
        return each.dependency != nullptr;
      });
  const bool is_unattended = is_for_gpu || then;
  submitted.handle = results_.open(entries_.size(), std::move(then), is_for_gpu);
  for (const Submission& submission : submissions) {
    if (submission.dependency != nullptr)
      results_.add_dependency(submitted.handle, submission.dependency);
  }
  if (is_unattended) world_.presence.expect();
  arrive_all(submitted);
  return submitted;
}

Entry& Submitter::prepare(ProcessSetContext& context, const Submission& submission) {
  refuse_impossible(context, submission);
  const Request& request = submission.requests.front();
  Entry& entry = entry_of(context, submission);
  if (entry.is_in_flight) {
    throw Error(
        ErrorCode::kInvalidArgument,
        context.title_of(entry) + ": a tensor of this name is still being processed on rank " +
            std::to_string(world_.config.rank) + "; synchronize it first or use another name");
  }
  entry.requests.assign(submission.requests.begin(), submission.requests.end());
  entry.tensors.assign(submission.tensors.begin(), submission.tensors.end());
  entry.dependency = submission.dependency;
  // Numbers that neither timing nor the place in a bucket changes.
  entry.rounding = world_.config.formats.rounding.of(entry.key.low).of(entry.uses++);
  for (std::size_t i = 0; i < entry.requests.size(); ++i) {
    Request& each = entry.requests[i];
    each.memory = memory_of(entry.tensors[i].device);
    each.rank = world_.config.rank;
    each.numbering = numbering_of(submission);
    if (is_reduction(each.kind)) {
      const bool is_engines = context.data_plane == nullptr;
      each.format = world_.config.formats.of(each, tensor_name(submission, i), is_engines);
    }
  }
  const std::uint64_t last_signature = std::exchange(entry.signature, signature_of(entry.requests));
  if (entry.signature != last_signature || recorder_.is_forgotten(entry.label))
    label(context, entry);
  entry.splits.assign(submission.splits.begin(), submission.splits.end());
  if (request.kind == Kind::kAlltoall && entry.splits.empty()) {
    entry.splits.assign(context.members.size(), request.dims[0] / context.size());
  }
  if (world_.config.is_debug) entry.objection = debug_.objection_to(entry);
  return entry;
}

void Submitter::label(const ProcessSetContext& context, Entry& entry) {
  const Request& request = entry.request();
  Label label{.key = entry.key.low,
              .process_set = static_cast<std::uint16_t>(context.id),
              .kind = static_cast<std::uint8_t>(request.kind),
              .dtype = static_cast<std::uint8_t>(request.dtype),
              .tensors = static_cast<std::uint16_t>(std::min<std::size_t>(
                  entry.requests.size(), std::numeric_limits<std::uint16_t>::max())),
              .dims_count = static_cast<std::uint8_t>(request.dims_count),
              .op = static_cast<std::uint8_t>(request.op)};
  label.set_name(entry.name);
  std::ranges::copy(request.shape().first(std::min(request.shape().size(), Label::kMaxDims)),
                    label.dims.begin());
  entry.label = recorder_.add_label(label);
}

Entry& Submitter::entry_of(ProcessSetContext& context, const Submission& submission) {
  const Request& request = submission.requests.front();
  const Numbering numbering = numbering_of(submission);
  std::string_view name = submission.name;
  std::string_view matched = name;
  std::string generated;
  if (numbering == Numbering::kOfSet) {
    const std::uint64_t number = ++context.running_number(request, numbering);
    name = matched = generated = numbered_name(submission.title, number, submission.group);
    matched.remove_prefix(submission.title.size());
  } else if (request.kind == Kind::kJoin && name.empty()) {
    name = matched = "join.noname";
  } else if (name.empty()) {
    const std::string number = std::to_string(++context.running_number(request, numbering));
    name = matched = generated = name_of(request) + ".noname." + number;
  }
  return context.tensors.find_or_create(name, matched);
}

// Call it before the operation takes a name or a number.
void Submitter::refuse_impossible(const ProcessSetContext& context,
                                  const Submission& submission) const {
  const bool is_engines = context.data_plane == nullptr;
  if (const auto reason = refusal_of(submission, context.members, is_engines)) {
    throw Error(ErrorCode::kInvalidArgument,
                title_of(submission) + context.suffix() + ": " + *reason);
  }
}

// Two submissions of one call under one name share an entry.
void Submitter::refuse_duplicates() {
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    if (!std::exchange(entries_[i]->is_submitting, true)) continue;
    for (std::size_t marked = 0; marked < i; ++marked) entries_[marked]->is_submitting = false;
    throw Error(ErrorCode::kInvalidArgument,
                entries_[i]->title() + ": the name occurs twice in one call");
  }
}

void Submitter::arrive_all(Submitted& submitted) {
  ProcessSetContext& context = *submitted.context;
  submitted.at_ns = now_ns();
  std::size_t position = 0;
  std::optional<Error> error;
  Recorder::Batch events(recorder_, entries_.size());
  try {
    const SharedLock lock = context.negotiation.lock();
    for (; position < entries_.size(); ++position) {
      submitted.became_ready |=
          arrive(context, *entries_[position], submitted.handle, position, submitted.at_ns, events);
    }
  } catch (const Error& caught) {
    error = caught.of(context.title_of(*entries_[position]));
  }
  for (; position < entries_.size(); ++position) {
    entries_[position]->is_submitting = false;
    results_.complete(submitted.handle, position, error, {});
  }
}

// Under the table's lock.
bool Submitter::arrive(ProcessSetContext& context, Entry& entry, HandleId handle,
                       std::size_t position, std::int64_t now, Recorder::Batch& events) {
  const bool is_ready = context.negotiation.arrive(entry.key, entry.requests, entry.splits,
                                                   entry.signature, entry.ref, entry.objection);
  const std::size_t size_bytes = entry.size_bytes();
  count(context, entry, size_bytes, now);
  entry.handle = handle;
  entry.position = position;
  entry.submitted_ns = now;
  entry.is_submitting = false;
  context.tensors.bind_slot(entry);
  context.tensors.begin(entry);
  context.pending.fetch_add(1);
  Event event = context.event(EventKind::kSubmit, now, entry.label, size_bytes);
  event.detail = is_ready ? 1 : 0;
  events.add(event);
  return is_ready;
}

void Submitter::count(const ProcessSetContext& context, const Entry& entry, std::size_t size_bytes,
                      std::int64_t now) {
  KindCounts& counts = counters_.kinds[static_cast<std::size_t>(entry.request().kind)];
  counts.operations.add(1);
  counts.tensors.add(entry.requests.size());
  counts.bytes.add(size_bytes);
  if (entry.submitted_ns == 0) return;
  counters_.pacemaker.beat(entry.key.low + static_cast<std::uint64_t>(context.id),
                           entry.submitted_ns, now);
}

}  // namespace hvd
