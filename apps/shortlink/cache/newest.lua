-- Keep a link's record unless one is kept that is newer: by (generation, version), then by the
-- moment at which its store read began.
--
-- KEYS: the link's key.
-- ARGV: generation, version, moment, record, the longest age for a fill, and for an entry.
-- Moments are this server's own time and ages are counted here, in milliseconds, so a command
-- that was long under way is judged by when it arrives, and no two hosts' clocks are compared.
-- Returns 1 if the record was kept, 0 if not.

local time = redis.call('TIME')
local age = time[1] * 1000 + math.floor(time[2] / 1000) - ARGV[3]
if age < 0 or age > tonumber(ARGV[5]) then
  return 0
end

local held = redis.pcall('GET', KEYS[1])
if type(held) == 'string' then
  local stamp = {string.match(held, '^(%d+) (%d+) (%d+) ')}
  for place = 1, #stamp do
    local difference = tonumber(stamp[place]) - tonumber(ARGV[place])
    if difference > 0 then
      return 0
    elseif difference < 0 then
      break
    end
  end
end

redis.call('SET', KEYS[1], table.concat(ARGV, ' ', 1, 4), 'PX', ARGV[6] - age)
return 1
