// SPDX-License-Identifier: Apache-2.0
#include "runtime/disk_cache.h"

#include <dirent.h>
#include <fcntl.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/env.h"
#include "base/error.h"
#include "base/log.h"

// A file: Header, then the content. Invariants:
// - a name that ends in ".xla" is complete when it appears (rename), and never changes;
// - a ".tmp" belongs to the process that writes it; one left by a killed process goes when it is old;
// - other names in the folder are not ours and are never touched.
namespace tpu::runtime::disk_cache {
namespace {

constexpr std::string_view kSuffix = ".xla", kTemporary = ".tmp";
constexpr time_t kAbandoned = 600;  // seconds without a write

struct Header {
  char magic[8];  // format and its version
  uint64_t key[2], size, checksum[2];
};
constexpr char kMagic[8] = {'T', 'P', 'U', 'X', 'L', 'A', '0', '1'};

Header header_for(const Hash128& key, std::string_view content) {
  Hash128 sum;
  sum.add(content);
  Header out{{}, {key.lo(), key.hi()}, content.size(), {sum.lo(), sum.hi()}};
  std::memcpy(out.magic, kMagic, sizeof kMagic);
  return out;
}

class File {
 public:
  explicit File(int fd) : fd_(fd) {}
  ~File() { close(); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  explicit operator bool() const { return fd_ >= 0; }
  int get() const { return fd_; }
  // Some file systems report a full disk only here.
  bool close() { return fd_ < 0 || ::close(std::exchange(fd_, -1)) == 0; }

 private:
  int fd_;
};

bool read_all(int fd, char* to, size_t size) {
  while (size > 0) {
    const ssize_t n = ::read(fd, to, size);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    to += n;
    size -= static_cast<size_t>(n);
  }
  return true;
}

bool write_all(int fd, const char* from, size_t size) {
  while (size > 0) {
    const ssize_t n = ::write(fd, from, size);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      if (n == 0) errno = ENOSPC;
      return false;
    }
    from += n;
    size -= static_cast<size_t>(n);
  }
  return true;
}

// A cache that can't be written is worth one line in a process, not one a program.
void report(const std::string& what, const std::string& path) {
  static std::atomic<bool> said{false};
  const std::string line =
      text("compiled programs are not kept on disk: ", what, ' ', path, ": ", std::strerror(errno));
  if (!said.exchange(true))
    log::write(line);
  else
    TPU_LOG(2, line);
}

bool make_folders(const std::string& path) {
  for (size_t i = 1; i <= path.size(); ++i) {
    if (i < path.size() && path[i] != '/') continue;
    // Private: whoever can write here chooses the code that we run.
    if (mkdir(path.substr(0, i).c_str(), 0700) == 0 || errno == EEXIST) continue;
    if (i == path.size() || (errno != EACCES && errno != EROFS)) return false;
  }
  return true;
}

std::string path_of(const std::string& folder, const Hash128& key) { return text(folder, '/', key.hex(), kSuffix); }

struct Entry {
  std::string name;
  int64_t bytes;
  timespec used;
};

bool is_ours(std::string_view name, std::string_view suffix) {
  return name.size() >= 32 + suffix.size() && name.ends_with(suffix) &&
         std::all_of(name.begin(), name.begin() + 32,
                     [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

// The files of ours that end in `suffix`.
std::vector<Entry> list(const std::string& folder, std::string_view suffix) {
  std::vector<Entry> out;
  DIR* dir = opendir(folder.c_str());
  if (!dir) return out;
  while (const dirent* entry = readdir(dir)) {
    struct stat info{};
    if (!is_ours(entry->d_name, suffix) || fstatat(dirfd(dir), entry->d_name, &info, AT_SYMLINK_NOFOLLOW) != 0 ||
        !S_ISREG(info.st_mode))
      continue;
    out.push_back({entry->d_name, static_cast<int64_t>(info.st_size), info.st_mtim});
  }
  closedir(dir);
  return out;
}

int64_t total(const std::vector<Entry>& entries) {
  int64_t bytes = 0;
  for (const Entry& entry : entries) bytes += entry.bytes;
  return bytes;
}

// Removes what killed processes left, then the least recently used files down to nine tenths of
// the bound, so that the next store need not come back here. Returns the bytes that stay.
int64_t sweep(const std::string& folder, int64_t bound) {
  const time_t now = time(nullptr);
  for (const Entry& entry : list(folder, kTemporary))
    if (now - entry.used.tv_sec > kAbandoned) unlink(text(folder, '/', entry.name).c_str());
  std::vector<Entry> entries = list(folder, kSuffix);
  int64_t bytes = total(entries);
  if (bytes <= bound) return bytes;
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.used.tv_sec, a.used.tv_nsec) < std::pair(b.used.tv_sec, b.used.tv_nsec);
  });
  for (const Entry& entry : entries) {
    if (bytes <= bound / 10 * 9) break;
    // Another process may have been first; its bytes are gone all the same.
    if (unlink(text(folder, '/', entry.name).c_str()) == 0 || errno == ENOENT) bytes -= entry.bytes;
  }
  TPU_LOG(1, "the folder of compiled programs passed its bound; ", bytes, " bytes stay");
  return bytes;
}

// Sweeps at the first store, when what this process knows of passes the bound, and now and then
// for what other processes have added.
void keep_bound(const std::string& folder, int64_t bound, int64_t added) {
  static std::mutex mutex;
  static std::string swept;
  static int64_t bytes = 0, stores = 0;
  std::lock_guard lock(mutex);
  bytes += added;
  if (swept == folder && bytes <= bound && ++stores % 64 != 0) return;
  swept = folder;
  bytes = sweep(folder, bound);
}

bool store_file(const std::string& folder, const Hash128& key, const std::string& content) {
  static std::atomic<uint64_t> serial{0};
  const std::string temporary = text(folder, '/', key.hex(), '.', getpid(), '.', serial.fetch_add(1), kTemporary);
  File file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!file) {
    report("can't create", temporary);
    return false;
  }
  const Header header = header_for(key, content);
  if (!write_all(file.get(), reinterpret_cast<const char*>(&header), sizeof header) ||
      !write_all(file.get(), content.data(), content.size()) || !file.close() ||
      rename(temporary.c_str(), path_of(folder, key).c_str()) != 0) {
    report("can't write", temporary);
    unlink(temporary.c_str());
    return false;
  }
  return true;
}

std::optional<std::string> load_file(const std::string& path, const Hash128& key) {
  File file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return std::nullopt;
  struct stat info{};
  Header header{};
  std::string content;
  bool good = fstat(file.get(), &info) == 0 && info.st_size >= static_cast<off_t>(sizeof header) &&
              read_all(file.get(), reinterpret_cast<char*>(&header), sizeof header) &&
              header.size == static_cast<uint64_t>(info.st_size) - sizeof header;
  if (good) {
    content.resize(header.size);
    const Header wanted = read_all(file.get(), content.data(), content.size()) ? header_for(key, content) : Header{};
    good = std::memcmp(&wanted, &header, sizeof header) == 0;
  }
  if (!good) {
    TPU_LOG(1, "dropping a damaged file: ", path);
    unlink(path.c_str());
    return std::nullopt;
  }
  // Marks it as used; on a read-only folder the order of eviction doesn't matter.
  (void)futimens(file.get(), nullptr);
  return content;
}

std::string resolve_folder() {
  if (!env::get_bool("TORCH_TPU_CACHE")) return {};
  if (std::string set = env::get_string("TORCH_TPU_CACHE_DIR"); !set.empty()) return set;
  const char* home = std::getenv("HOME");  // no switch of ours, so not in env's table
  if (!home || !*home) {
    const passwd* user = getpwuid(geteuid());
    home = user ? user->pw_dir : nullptr;
  }
  return home && *home ? text(home, "/.cache/torch_tpu") : std::string();
}

// Whatever goes wrong, std::bad_alloc included, is a miss.
template <class F>
auto quietly(F&& f) -> decltype(f()) {
  try {
    return f();
  } catch (const std::exception& e) {
    TPU_LOG(1, "disk cache: ", e.what());
    return decltype(f())();
  }
}

}  // namespace

std::string folder() { return quietly(resolve_folder); }

std::optional<std::string> load(const Hash128& key) {
  return quietly([&]() -> std::optional<std::string> {
    const std::string where = resolve_folder();
    return where.empty() ? std::nullopt : load_file(path_of(where, key), key);
  });
}

void store(const Hash128& key, const std::string& content) {
  quietly([&] {
    const std::string where = resolve_folder();
    const int64_t bound = env::get_int("TORCH_TPU_CACHE_SIZE_MB") << 20;
    const auto bytes = static_cast<int64_t>(content.size() + sizeof(Header));
    if (where.empty() || bytes > bound) return;
    if (!make_folders(where))
      report("can't create", where);
    else if (store_file(where, key, content))
      keep_bound(where, bound, bytes);
  });
}

void discard(const Hash128& key) {
  quietly([&] {
    if (const std::string where = resolve_folder(); !where.empty()) unlink(path_of(where, key).c_str());
  });
}

Usage usage() {
  return quietly([] {
    const std::string where = resolve_folder();
    const std::vector<Entry> entries = where.empty() ? std::vector<Entry>{} : list(where, kSuffix);
    return Usage{static_cast<int64_t>(entries.size()), total(entries)};
  });
}

void clear() {
  quietly([] {
    const std::string where = resolve_folder();
    if (where.empty()) return;
    for (std::string_view suffix : {kSuffix, kTemporary})
      for (const Entry& entry : list(where, suffix)) unlink(text(where, '/', entry.name).c_str());
  });
}

}  // namespace tpu::runtime::disk_cache
