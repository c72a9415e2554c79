#include "ptx_machine.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <sstream>
#include <type_traits>

namespace ptx {

struct Thread {
  std::vector<std::uint64_t> registers;
  const std::vector<std::byte>& parameters;
  const FindStretch& find_stretch;
  Grid grid;
  std::uint32_t block = 0;
  std::uint32_t row = 0;
  std::uint32_t thread = 0;
  std::size_t next = 0;
  std::array<Stretch, 8> known{};
  std::size_t oldest = 0;

  template <typename T>
  T get(std::size_t index) const {
    T value;
    std::memcpy(&value, &registers[index], sizeof value);
    return value;
  }
  // Narrow integers fill the register, like loads.
  template <typename T>
  void put(std::size_t index, T value) {
    if constexpr (std::is_integral_v<T>) {
      registers[index] = static_cast<std::uint64_t>(static_cast<std::int64_t>(value));
    } else {
      std::memcpy(&registers[index], &value, sizeof value);
    }
  }
  std::byte* memory(std::uint64_t address, std::size_t size_bytes);
};

namespace {

[[noreturn]] void refuse(const std::string& what) {
  std::fprintf(stderr, "ptx_machine: %s\n", what.c_str());
  std::abort();
}

double half_to_double(std::uint16_t half) {
  const double sign = (half & 0x8000U) != 0 ? -1.0 : 1.0;
  const int exponent = (half >> 10U) & 31;
  const int fraction = half & 1023;
  if (exponent == 31) return fraction == 0 ? sign * INFINITY : NAN;
  if (exponent == 0) return sign * std::ldexp(fraction, -24);
  return sign * std::ldexp(fraction + 1024, exponent - 25);
}

std::uint16_t half_of(float value) {
  const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  if (std::isnan(value)) return 0x7fff;
  const double size = std::fabs(static_cast<double>(value));
  int exponent = 0;
  std::frexp(size, &exponent);
  const int place = std::max(exponent - 11, -24);  // of the last bit
  const double rounded = std::ldexp(std::nearbyint(std::ldexp(size, -place)), place);
  if (size == 0.0 || rounded == 0.0) return sign;
  if (rounded >= 65536.0) return sign | 0x7c00;
  std::frexp(rounded, &exponent);
  const int least = std::max(exponent - 11, -24);
  const auto digits = static_cast<int>(std::ldexp(rounded, -least));
  const int biased = digits < 1024 ? 0 : least + 25;
  return static_cast<std::uint16_t>(sign | (biased << 10) | (digits & 1023));
}

// Calls `make` with a value of the type `name`.
template <typename Make>
Step with_type(const std::string& name, Make make) {
  if (name == "u8" || name == "b8") return make(std::uint8_t{});
  if (name == "s8") return make(std::int8_t{});
  if (name == "u16" || name == "b16") return make(std::uint16_t{});
  if (name == "s16") return make(std::int16_t{});
  if (name == "u32" || name == "b32") return make(std::uint32_t{});
  if (name == "s32") return make(std::int32_t{});
  if (name == "u64" || name == "b64") return make(std::uint64_t{});
  if (name == "s64") return make(std::int64_t{});
  if (name == "f32") return make(float{});
  if (name == "f64") return make(double{});
  refuse("no such type: " + name);
}

template <typename T>
using Unsigned =
    std::conditional_t<std::is_floating_point_v<T>, std::type_identity<T>, std::make_unsigned<T>>;

// A split instruction: "setp.ge.u64" and its operands.
struct Words {
  std::vector<std::string> name;
  std::vector<std::string> operands;

  const std::string& type() const { return name.back(); }
};

class Parser {
 public:
  explicit Parser(Kernel& kernel) : kernel_(kernel) {}

  void add_parameter(const std::string& name, std::size_t size_bytes) {
    const std::size_t at = kernel_.parameter_at.empty()
                               ? 0
                               : kernel_.parameter_at.back() + kernel_.parameter_bytes.back();
    kernel_.parameter_at.push_back((at + 7) / 8 * 8);
    kernel_.parameter_bytes.push_back(size_bytes);
    parameters_[name] = kernel_.parameter_at.back();
  }

  void add_label(const std::string& name) { labels_[name] = kernel_.steps.size(); }

  void add_instruction(std::string line) {
    std::string condition;
    if (line[0] == '@') {
      const std::size_t end = line.find(' ');
      condition = line.substr(1, end - 1);
      line = line.substr(end + 1);
    }
    const Words words = split(line);
    if (words.name[0] != "bra") {
      kernel_.steps.push_back(step_of(words));
      return;
    }
    jumps_.push_back({kernel_.steps.size(), words.operands[0], condition});
    kernel_.steps.emplace_back();
  }

  // A label may follow the branch to it.
  void finish() {
    for (const Jump& jump : jumps_) {
      const std::size_t to = labels_.at(jump.label);
      if (jump.condition.empty()) {
        kernel_.steps[jump.at] = [to](Thread& t) { t.next = to; };
        continue;
      }
      kernel_.steps[jump.at] = [to, on = reg(jump.condition)](Thread& t) {
        if (t.registers[on] != 0) t.next = to;
      };
    }
  }

 private:
  struct Jump {
    std::size_t at;
    std::string label;
    std::string condition;
  };

  static Words split(const std::string& line) {
    Words words;
    const std::size_t space = std::min(line.find(' '), line.find(';'));
    std::istringstream name(line.substr(0, space));
    for (std::string part; std::getline(name, part, '.');) words.name.push_back(part);
    std::istringstream operands(line.substr(space));
    for (std::string part; std::getline(operands, part, ',');) {
      std::erase_if(part, [](char c) { return c == ' ' || c == ';' || c == '[' || c == ']'; });
      if (!part.empty()) words.operands.push_back(part);
    }
    return words;
  }

  // "17", or "0d" and the bits of a double.
  static std::uint64_t constant_of(const std::string& text) {
    return text.starts_with("0d") ? std::stoull(text.substr(2), nullptr, 16) : std::stoull(text);
  }

  // Constants and addresses of parameters are registers that are never written.
  std::size_t reg(const std::string& operand) {
    const auto found = registers_.find(operand);
    if (found != registers_.end()) return found->second;
    std::uint64_t value = 0;
    if (parameters_.contains(operand)) value = parameters_.at(operand);
    if (std::isdigit(static_cast<unsigned char>(operand[0])) != 0) value = constant_of(operand);
    kernel_.registers.push_back(value);
    return registers_[operand] = kernel_.registers.size() - 1;
  }

  Step step_of(const Words& words);
  Step move(const Words& words, std::size_t to);
  Step load(const Words& words, std::size_t to);
  Step convert(const Words& words, std::size_t to);
  Step compare(const Words& words, std::size_t to);
  static Step calculate(const Words& words, std::size_t to, std::size_t a, std::size_t b);

  Kernel& kernel_;
  std::map<std::string, std::size_t> parameters_;
  std::map<std::string, std::size_t> registers_;
  std::map<std::string, std::size_t> labels_;
  std::vector<Jump> jumps_;
};

Step Parser::move(const Words& words, std::size_t to) {
  const std::string& from = words.operands[1];
  if (from == "%ctaid.x") return [=](Thread& t) { t.put(to, t.block); };
  if (from == "%ctaid.y") return [=](Thread& t) { t.put(to, t.row); };
  if (from == "%nctaid.x") return [=](Thread& t) { t.put(to, t.grid.blocks); };
  if (from == "%tid.x") return [=](Thread& t) { t.put(to, t.thread); };
  if (from == "%ntid.x") return [=](Thread& t) { t.put(to, t.grid.threads); };
  return [to, a = reg(from)](Thread& t) { t.registers[to] = t.registers[a]; };
}

Step Parser::load(const Words& words, std::size_t to) {
  const std::size_t from = reg(words.operands[1]);
  const bool is_parameter = words.name[1] == "param";
  return with_type(words.type(), [=](auto type) -> Step {
    using T = decltype(type);
    return [=](Thread& t) {
      const std::uint64_t address = t.registers[from];
      T value;
      if (is_parameter && address + sizeof value > t.parameters.size()) refuse("no such parameter");
      const std::byte* at =
          is_parameter ? t.parameters.data() + address : t.memory(address, sizeof value);
      std::memcpy(&value, at, sizeof value);
      t.put(to, value);
    };
  });
}

Step Parser::convert(const Words& words, std::size_t to) {
  const std::size_t from = reg(words.operands[1]);
  std::string way;
  for (std::size_t i = 1; i < words.name.size(); ++i) way += "." + words.name[i];
  if (way == ".u64.u32") return [=](Thread& t) { t.put(to, t.get<std::uint32_t>(from)); };
  if (way == ".rn.f32.f64") {
    return [=](Thread& t) { t.put(to, static_cast<float>(t.get<double>(from))); };
  }
  if (way == ".f64.f32") {
    return [=](Thread& t) { t.put(to, static_cast<double>(t.get<float>(from))); };
  }
  if (way == ".f32.f16") {
    return [=](Thread& t) {
      t.put(to, static_cast<float>(half_to_double(t.get<std::uint16_t>(from))));
    };
  }
  if (way == ".rn.f16.f32") return [=](Thread& t) { t.put(to, half_of(t.get<float>(from))); };
  refuse("no such conversion: " + way);
}

Step Parser::compare(const Words& words, std::size_t to) {
  const std::size_t a = reg(words.operands[1]);
  const std::size_t b = reg(words.operands[2]);
  const std::string& how = words.name[1];
  return with_type(words.type(), [=](auto type) -> Step {
    using T = decltype(type);
    if (how == "ge") return [=](Thread& t) { t.put(to, t.get<T>(a) >= t.get<T>(b)); };
    if (how == "le") return [=](Thread& t) { t.put(to, t.get<T>(a) <= t.get<T>(b)); };
    if (how == "lt") return [=](Thread& t) { t.put(to, t.get<T>(a) < t.get<T>(b)); };
    if (how == "eq") return [=](Thread& t) { t.put(to, t.get<T>(a) == t.get<T>(b)); };
    if (how == "ne") return [=](Thread& t) { t.put(to, t.get<T>(a) != t.get<T>(b)); };
    if (how != "nan") refuse("no such comparison: " + how);
    return [=](Thread& t) { t.put(to, t.get<T>(a) != t.get<T>(a) || t.get<T>(b) != t.get<T>(b)); };
  });
}

Step Parser::calculate(const Words& words, std::size_t to, std::size_t a, std::size_t b) {
  const std::string& name = words.name[0];
  if (name == "shl") {
    return [=](Thread& t) { t.put(to, t.get<std::uint32_t>(a) << t.registers[b]); };
  }
  if (name == "shr") {
    return [=](Thread& t) { t.put(to, t.get<std::uint32_t>(a) >> t.registers[b]); };
  }
  if (name == "mul" && words.name[1] == "wide") {
    return [=](Thread& t) {
      t.put(to, std::uint64_t{t.get<std::uint32_t>(a)} * t.get<std::uint32_t>(b));
    };
  }
  return with_type(words.type(), [=](auto type) -> Step {
    using T = typename Unsigned<decltype(type)>::type;
    if (name == "add") {
      return [=](Thread& t) { t.put(to, static_cast<T>(t.get<T>(a) + t.get<T>(b))); };
    }
    if (name == "sub") {
      return [=](Thread& t) { t.put(to, static_cast<T>(t.get<T>(a) - t.get<T>(b))); };
    }
    if (name == "mul") {
      return [=](Thread& t) { t.put(to, static_cast<T>(t.get<T>(a) * t.get<T>(b))); };
    }
    if constexpr (std::is_floating_point_v<T>) {
      if (name == "div") return [=](Thread& t) { t.put(to, t.get<T>(a) / t.get<T>(b)); };
    }
    refuse("no such instruction: " + name);
  });
}

Step Parser::step_of(const Words& words) {
  const std::string& name = words.name[0];
  if (name == "ret") return [](Thread& t) { t.next = std::numeric_limits<std::size_t>::max(); };
  const std::size_t to = reg(words.operands[0]);
  if (name == "mov") return move(words, to);
  if (name == "ld") return load(words, to);
  if (name == "cvt") return convert(words, to);
  if (name == "setp") return compare(words, to);
  const std::size_t a = reg(words.operands[1]);
  if (name == "st") {
    return with_type(words.type(), [=](auto type) -> Step {
      return [=](Thread& t) {
        const auto value = t.get<decltype(type)>(a);
        std::memcpy(t.memory(t.registers[to], sizeof value), &value, sizeof value);
      };
    });
  }
  if (name == "abs") return [=](Thread& t) { t.put(to, std::fabs(t.get<double>(a))); };
  const std::size_t b = reg(words.operands[2]);
  if (name == "or") return [=](Thread& t) { t.registers[to] = t.registers[a] | t.registers[b]; };
  if (name == "and") return [=](Thread& t) { t.registers[to] = t.registers[a] & t.registers[b]; };
  if (name == "selp") {
    return [=, p = reg(words.operands[3])](Thread& t) {
      t.registers[to] = t.registers[p] != 0 ? t.registers[a] : t.registers[b];
    };
  }
  return calculate(words, to, a, b);
}

std::size_t bytes_of_parameter(const std::string& line) {
  const std::size_t bracket = line.find('[');
  if (bracket != std::string::npos) return std::stoul(line.substr(bracket + 1));
  return line.find("32 ") != std::string::npos ? 4 : 8;
}

std::string name_of_parameter(std::string line) {
  line = line.substr(0, line.find_first_of("[,"));
  return line.substr(line.rfind(' ') + 1);
}

}  // namespace

std::byte* Thread::memory(std::uint64_t address, std::size_t size_bytes) {
  for (const Stretch& each : known) {
    if (address >= each.begin && address + size_bytes <= each.end) {
      return each.host + (address - each.begin);
    }
  }
  const Stretch found = find_stretch(address);
  if (found.host == nullptr || address + size_bytes > found.end) refuse("no such memory");
  known[oldest++ % known.size()] = found;
  return found.host + (address - found.begin);
}

std::map<std::string, Kernel> parse(const std::string& text) {
  const std::string entry = ".visible .entry ";
  std::map<std::string, Kernel> kernels;
  std::istringstream lines(text);
  std::unique_ptr<Parser> parser;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(entry)) {
      const std::string name = line.substr(entry.size(), line.find('(') - entry.size());
      parser = std::make_unique<Parser>(kernels[name]);
    } else if (line.starts_with(".param")) {
      parser->add_parameter(name_of_parameter(line), bytes_of_parameter(line));
    } else if (line == "}") {
      parser->finish();
    } else if (line.empty() || line[0] == '.' || line[0] == '{' || line[0] == ')') {
      continue;
    } else if (line.back() == ':') {
      parser->add_label(line.substr(0, line.size() - 1));
    } else {
      parser->add_instruction(line);
    }
  }
  return kernels;
}

std::vector<std::byte> pack(const Kernel& kernel, void* const* arguments) {
  std::vector<std::byte> packed(kernel.parameter_at.back() + kernel.parameter_bytes.back());
  for (std::size_t i = 0; i < kernel.parameter_at.size(); ++i) {
    std::memcpy(packed.data() + kernel.parameter_at[i], arguments[i], kernel.parameter_bytes[i]);
  }
  return packed;
}

void run(const Kernel& kernel, Grid grid, const std::vector<std::byte>& parameters,
         const FindStretch& find_stretch) {
  Thread thread{.registers = kernel.registers,
                .parameters = parameters,
                .find_stretch = find_stretch,
                .grid = grid};
  for (thread.row = 0; thread.row < grid.rows; ++thread.row) {
    for (thread.block = 0; thread.block < grid.blocks; ++thread.block) {
      for (thread.thread = 0; thread.thread < grid.threads; ++thread.thread) {
        thread.next = 0;
        while (thread.next < kernel.steps.size()) kernel.steps[thread.next++](thread);
      }
    }
  }
}

}  // namespace ptx
