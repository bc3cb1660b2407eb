package drive

// noteDeaths notes that the mover has died so often in all pods, when done bytes were moved. Deaths before that are
// forgotten if it had got further than at any of them: the movement of a large volume takes days, and goes on after
// each short failure of its storage or its node.
func (m *memory) noteDeaths(total int, done int64) {
	if total <= m.SeenDeaths {
		return
	}
	if done > m.DeathBytes {
		m.ForgottenDeaths, m.DeathBytes = total-1, done
	}
	m.SeenDeaths = total
}

// deathsInARow returns how many of so many deaths count.
func (m *memory) deathsInARow(total int) int { return max(0, total-m.ForgottenDeaths) }

// notePodDeaths notes the deaths in the pod that the object has.
func (in *Input) notePodDeaths() {
	if m := &in.Object.Memory; in.Pod != nil && in.Pod.UID != m.Lost {
		m.noteDeaths(m.Deaths+in.Pod.Deaths, in.Object.Done)
	}
}

// addDeaths adds the deaths in a pod that is lost, the last of which is noted now, and returns how many count.
func (m *memory) addDeaths(deaths int, done int64) int {
	m.Deaths += deaths
	// When a pod has disappeared, there is no way to tell how often its mover died in it.
	m.SeenDeaths, m.ForgottenDeaths = min(m.SeenDeaths, m.Deaths-1), min(m.ForgottenDeaths, m.Deaths-1)
	m.noteDeaths(m.Deaths, done)
	return m.deathsInARow(m.Deaths)
}
